"""When a new base is due: five triggers that min_interval holds back, and a bound that it doesn't.

An omitted trigger is off. max_diffs bounds the manifest, so neither min_interval
nor anything else puts it off.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Triggers:
    """The ``snapshot`` block. Times in seconds, sizes in bytes, fractions of the last snapshot."""

    min_interval: float = 0.0
    max_interval: float | None = None
    max_diff_bytes: int | None = None
    max_diff_fraction: float | None = None
    max_churn_records: int | None = None
    max_churn_fraction: float | None = None
    max_diffs: int = 2000

    def due(self, since: "SinceSnapshot") -> str | None:
        """The name of the trigger that asks for a new base now, or None."""
        if since.diffs >= self.max_diffs:
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
                since.churn_records, _part(self.max_churn_fraction, since.snapshot_rows)
            ),
        }
        return next((name for name, reached in checks.items() if reached), None)


@dataclass(frozen=True, slots=True)
class SinceSnapshot:
    """What happened since the last base of the epoch."""

    age_s: float
    snapshot_bytes: int
    snapshot_rows: int
    diffs: int = 0
    diff_bytes: int = 0
    churn_records: int = 0


def _part(fraction: float | None, whole: int) -> float | None:
    # Of an empty table's base every change is more than any fraction.
    return None if fraction is None else fraction * max(1, whole)


def _reached(amount: float, limit: float | None) -> bool:
    return limit is not None and amount > 0 and amount >= limit
