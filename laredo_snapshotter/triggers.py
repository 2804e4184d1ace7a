"""Triggers of a new base: six, all of which min_interval delays.

An omitted trigger is off, except for max_diffs, which 0 switches off: each reader opens every diff
since the base, and each commit writes the whole manifest, which names them all.
"""

from dataclasses import dataclass

MOST_DIFFS = 10_000
"""Number of diffs from which min_interval delays no base, unless max_diffs is off or larger.
Their manifest has 5.8 MB, written again with each diff, and a reader opens 10,000 objects: 3.3 s of
CPU time on a local disk, where 2,000 take 0.45 s, and a request for each on S3."""


@dataclass(frozen=True, slots=True)
class Triggers:
    """The configured limits, any of which makes a new base due: the ``snapshot`` block."""

    min_interval: float = 0.0
    """Seconds since the base before which no trigger fires."""
    max_interval: float | None = None
    """Seconds since the base."""
    max_diff_bytes: int | None = None
    """Of the diffs since the base, each in its largest format."""
    max_diff_fraction: float | None = None
    """Limit of diff bytes, as a part of the base's bytes."""
    max_churn_records: int | None = None
    """Net changes of the diffs since the base."""
    max_churn_fraction: float | None = None
    """Limit of changes, as a part of the rows that the table has now."""
    max_diffs: int = 2000

    def due(self, since: "SinceSnapshot") -> str | None:
        """The name of the trigger that asks for a new base now, or None."""
        if self.max_diffs and since.diffs >= max(self.max_diffs, MOST_DIFFS):
            return "max_diffs"
        if since.age_s < self.min_interval:
            return None
        checks = {
            "max_interval": _reached(since.age_s, self.max_interval),
            "max_diff_bytes": _reached(since.diff_bytes, self.max_diff_bytes),
            "max_diff_fraction": _reached(
                since.diff_bytes, _part(self.max_diff_fraction, since.snapshot_bytes)
            ),
            "max_churn_records": _reached(since.churn_records, self.max_churn_records),
            "max_churn_fraction": _reached(
                since.churn_records, _part(self.max_churn_fraction, since.rows)
            ),
            "max_diffs": _reached(since.diffs, self.max_diffs or None),
        }
        return next((name for name, reached in checks.items() if reached), None)


@dataclass(frozen=True, slots=True)
class SinceSnapshot:
    """Figures since the epoch's base, which the triggers are compared with."""

    age_s: float
    """The base's age."""
    snapshot_bytes: int
    """The base's size."""
    rows: int
    """The table's rows now."""
    diffs: int = 0
    diff_bytes: int = 0
    churn_records: int = 0


def _part(fraction: float | None, whole: int) -> float | None:
    # Of an empty table every change is more than any fraction.
    return None if fraction is None else fraction * max(1, whole)


def _reached(amount: float, limit: float | None) -> bool:
    return limit is not None and amount > 0 and amount >= limit
