"""How long to wait before another try: one rule for every retry and every reconnect."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from tenacity import RetryCallState
from tenacity.wait import wait_base


@dataclass(frozen=True, slots=True)
class Backoff(wait_base):
    """How long to wait before the next attempt, in seconds.

    ``initial`` doubles with every attempt that brought nothing, up to ``maximum``; a random
    part of up to a half is taken off, so that many clients don't come back at
    once. ``attempts``: give up after so many in a row; None: never.

    It is a ``wait`` of tenacity. A loop that reconnects, and so has its own idea of when the
    failures in a row are over, asks :meth:`delay`.
    """

    initial: float = 0.2
    maximum: float = 5.0
    attempts: int | None = None

    def delay(self, failures: int, chance: Callable[[], float] = random.random) -> float:
        """The wait after ``failures`` failed attempts in a row (1 or more).

        ``chance`` draws from 0 to 1; a simulation brings its own.
        """
        full: float = min(self.maximum, self.initial * 2 ** min(failures - 1, 30))
        return full * (0.5 + chance() / 2)

    def __call__(self, retry_state: RetryCallState) -> float:
        """The wait of a loop of tenacity."""
        return self.delay(retry_state.attempt_number)
