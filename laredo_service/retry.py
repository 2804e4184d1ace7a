"""Waiting time between two attempts, and the log of an outage."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from tenacity import RetryCallState
from tenacity.wait import wait_base


@dataclass(frozen=True, slots=True)
class Backoff(wait_base):
    """Exponential backoff with jitter.

    It is a ``wait`` of tenacity. A loop that reconnects counts failures in a row itself, and
    calls :meth:`delay`.
    """

    #: Seconds before the second attempt; doubled with every failed attempt. A random part of up
    #: to a half is subtracted, so that many clients don't return at once.
    initial: float = 0.2
    #: The most seconds between two attempts.
    maximum: float = 5.0
    #: Number of failures in a row after which to give up; None: never.
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


_LOG_AGAIN_S = 600.0


class Outage:
    """A time in which every attempt fails, which isn't logged for each attempt.

    It is logged when it begins, when its kind changes, and every ten minutes.
    """

    def __init__(self) -> None:
        self._kind: str | None = None
        self._logged_at = 0.0

    def is_news(self, kind: str) -> bool:
        """Note a failure; True if it is worth a line."""
        now = time.monotonic()
        if kind == self._kind and now - self._logged_at < _LOG_AGAIN_S:
            return False
        self._kind, self._logged_at = kind, now
        return True

    def end(self) -> None:
        """An attempt succeeded: the next failure is news."""
        self._kind = None
