"""The status of fall-behind mode: plain values, made for each request."""

from __future__ import annotations

from typing import Any, NamedTuple

from laredo_model import position as position_


class SegmentStatus(NamedTuple):
    """One segment: transactions from ``start`` on, before ``stop`` (None: as they come).

    ``position`` is the end of the last one in its spool, ``reached`` how far the
    server has decoded for it; ``state`` is waiting, decoding, paused, decoded,
    releasing or released.
    """

    number: int
    start: int
    stop: int | None
    position: int
    reached: int
    state: str
    spooled_bytes: int
    pid: int | None

    def to_json(self) -> dict[str, Any]:
        """As /status shows it."""
        positions = {
            name: None if position is None else position_.text(position)
            for name, position in (
                ("start", self.start),
                ("stop", self.stop),
                ("position", self.position),
                ("reached", self.reached),
            )
        }
        return {**self._asdict(), **positions}


class CatchupStatus(NamedTuple):
    """Sizes in bytes. ``lag_bytes`` is what the server has written beyond what is durable
    here, ``checks_above`` how many times in a row it was above the threshold;
    ``release_position`` and ``segments`` are there while a backlog is split.

    ``restarts`` counts segments' processes that were restarted, ``plans`` backlogs
    that were split, ``given_up`` those of them that were read through the one slot
    after all; ``trouble`` has the reason why the last one was, or wasn't split.
    """

    mode: str
    threshold_bytes: int
    lag_bytes: int
    checks_above: int
    plans: int
    given_up: int
    restarts: int
    trouble: str | None
    release_position: int | None
    spool_bytes: int
    segments: tuple[SegmentStatus, ...]

    def to_json(self) -> dict[str, Any]:
        """As /status shows it."""
        released = self.release_position
        return {
            **self._asdict(),
            "active": released is not None,
            "release_position": None if released is None else position_.text(released),
            "segments": [segment.to_json() for segment in self.segments],
        }
