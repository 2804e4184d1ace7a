"""The status page that both programs share: routes, figures, and charts of the last hour.

A line is broken where nothing was known, or where the program didn't run: such a range is a gap,
never a line to zero or across.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import Response

from laredo_service import figures
from laredo_service.http.server import Endpoints

# A figure's values over the last hour, in memory, in steps of ten seconds.

HOUR_S = 3600.0
STEP_S = 10.0


class Step(NamedTuple):
    """The values of ten seconds."""

    #: Monotonic time of its begin.
    start: float
    #: The greatest known value; None: none was known.
    value: float | None


class LastHour:
    """The steps of the last hour; at most 361, however long the program runs."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque(maxlen=int(HOUR_S / STEP_S) + 1)

    def add(self, now: float, value: float | None) -> None:
        """Take what is known at ``now``, a monotonic time; None: nothing."""
        start = now - now % STEP_S
        if self._steps and self._steps[-1].start >= start:
            known = [each for each in (self._steps.pop().value, value) if each is not None]
            value = max(known, default=None)
        self._steps.append(Step(start, value))

    def since(self, now: float) -> Iterator[Step]:
        """The steps of the hour before ``now``, oldest first."""
        return (step for step in self._steps if step.start > now - HOUR_S - STEP_S)


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


# A program's status page at ``/``, and what belongs to it.
#
# ``/page/content`` is the part of it that its script fetches again and again. Nothing comes from
# elsewhere and nothing is inline: the Content-Security-Policy forbids both, so that a name that
# brings markup along could do nothing even if it weren't escaped.

_SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}
_FILES = Path(__file__).parent


def add(
    app: Endpoints, package: str, context: Callable[[Mapping[str, str]], Mapping[str, Any]]
) -> None:
    """Give ``app`` the status page.

    :param package: the one whose ``templates`` have ``page.html`` and ``content.html``.
    :param context: the names that these templates use, made for each request of its query.
    """
    templates = _environment(package)
    style = (_FILES / "page.css").read_text()
    script = (_FILES / "page.js").read_text()

    def rendered(name: str, request: Request) -> Response:
        text = templates.get_template(name).render(context(request.query_params))
        return Response(text, media_type="text/html", headers=_SECURITY)

    async def show_page(request: Request) -> Response:
        return rendered("page.html", request)

    async def show_content(request: Request) -> Response:
        return rendered("content.html", request)

    async def show_style(_: Request) -> Response:
        return Response(style, media_type="text/css", headers=_SECURITY)

    async def show_script(_: Request) -> Response:
        return Response(script, media_type="text/javascript", headers=_SECURITY)

    app.get("/", show_page)
    app.get("/page/content", show_content)
    app.get("/page/page.css", show_style)
    app.get("/page/page.js", show_script)


def _environment(package: str) -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader(__package__)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "size": figures.size,
        "duration": figures.duration,
        "count": figures.count,
        "ago": figures.ago,
    }
    environment.globals |= {"width": WIDTH, "height": HEIGHT}
    return environment
