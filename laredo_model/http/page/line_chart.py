"""The geometry of a line chart of the last hour, for an inline SVG.

A line is broken where nothing was known, or where the program didn't run: such a range is a gap,
never a line to zero or across.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from laredo_model.http.page.last_hour import HOUR_S, STEP_S, LastHour, Step

WIDTH, HEIGHT = 720, 100
_X_PER_S = WIDTH / HOUR_S


@dataclass(frozen=True)
class Gap:
    """A range in which nothing was known."""

    x: float
    width: float


@dataclass(frozen=True)
class LineChart:
    """A chart that can be drawn."""

    #: The value at the upper edge.
    top: float
    #: Paths of the lines, one between two gaps.
    lines: tuple[str, ...]
    #: The same, closed along the lower edge.
    areas: tuple[str, ...]
    gaps: tuple[Gap, ...]
    #: The greatest value of the hour; None: nothing was known.
    greatest: float | None


def chart_of(values: LastHour, now: float, tops: Sequence[float]) -> LineChart:
    """The chart of the hour before ``now``, a monotonic time.

    :param tops: the values that the upper edge may have, ascending; doubled beyond the last.
    """
    steps = _without_holes(values.since(now))
    known = [step.value for step in steps if step.value is not None]
    greatest = max(known, default=None)
    top = _top(greatest or 0.0, tops)
    lines, areas, gaps = [], [], []
    for is_known, run in groupby(steps, key=lambda step: step.value is not None):
        range_ = list(run)
        left, right = _x(range_[0].start, now), _x(range_[-1].start + STEP_S, now)
        if not is_known:
            gaps.append(Gap(round(left, 1), round(right - left, 1)))
            continue
        line = _line(range_, now, top)
        lines.append(line)
        areas.append(f"{line}V{HEIGHT}H{left:.1f}Z")
    return LineChart(top, tuple(lines), tuple(areas), tuple(gaps), greatest)


def _without_holes(steps: Iterable[Step]) -> list[Step]:
    """The steps, with an unknown one wherever some are missing between two."""
    filled: list[Step] = []
    for step in steps:
        if filled and step.start - filled[-1].start > 1.5 * STEP_S:
            filled += _unknown(filled[-1].start + STEP_S, step.start)
        filled.append(step)
    return filled


def _unknown(start: float, stop: float) -> list[Step]:
    return [Step(start + STEP_S * n, None) for n in range(round((stop - start) / STEP_S))]


def _line(steps: Sequence[Step], now: float, top: float) -> str:
    """A path along the steps; each lasts until the next, so that a single one is seen too."""
    parts = []
    for step in steps:
        y = HEIGHT * (1 - min(1.0, (step.value or 0.0) / top))
        parts.append(f"{_x(step.start, now):.1f} {y:.1f}")
    end = f"H{_x(steps[-1].start + STEP_S, now):.1f}"
    return "M" + "L".join(parts) + end


def _x(at: float, now: float) -> float:
    return min(float(WIDTH), max(0.0, WIDTH - (now - at) * _X_PER_S))


def _top(greatest: float, tops: Sequence[float]) -> float:
    for top in tops:
        if greatest <= top:
            return top
    top = tops[-1]
    while top < greatest:
        top *= 2
    return top
