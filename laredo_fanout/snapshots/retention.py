"""Which snapshots are kept."""

from collections.abc import Sequence
from dataclasses import dataclass

from laredo_fanout.snapshots.info import SnapshotInfo


@dataclass(frozen=True, slots=True)
class Retention:
    """``keep_count`` snapshots at most, none older than ``max_age_s`` s; always the newest."""

    keep_count: int
    max_age_s: float

    def expired(self, newest_first: Sequence[SnapshotInfo], now_us: int) -> list[SnapshotInfo]:
        """Those that go, oldest first."""
        oldest = now_us - int(self.max_age_s * 1_000_000)
        gone = [
            each
            for index, each in enumerate(newest_first)
            if index and (index >= self.keep_count or each.created_at_us < oldest)
        ]
        return gone[::-1]
