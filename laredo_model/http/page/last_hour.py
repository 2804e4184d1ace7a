"""A figure's values over the last hour, in memory, in steps of ten seconds."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

HOUR_S = 3600.0
STEP_S = 10.0


class Step(NamedTuple):
    """The values of ten seconds."""

    #: Monotonic time of its begin.
    start: float
    #: The greatest that was seen; None: it couldn't be known in any of its seconds.
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
