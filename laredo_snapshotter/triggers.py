"""Triggers of a new base: six, all of which min_interval delays; and their simulation.

An omitted trigger is off, except for max_diffs, which 0 switches off: each reader opens every diff
since the base, and each commit writes the whole manifest, which names them all.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from laredo_archive.manifest.model import Artifact, Manifest
from laredo_service.figures import size

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


@dataclass
class Fired:
    """Bases that the triggers would have begun over the diffs from ``begin`` to ``end``."""

    begin: datetime
    """Time of the archive's first base."""
    end: datetime
    """Time of its last artifact."""
    base_bytes: int
    """Of the archive's newest base, in its largest format."""
    diffs: int = 0
    diff_bytes: int = 0
    """Of these diffs, each in its largest format."""
    by_trigger: Counter[str] = field(default_factory=Counter)

    @property
    def bases(self) -> int:
        """New bases, of all triggers."""
        return self.by_trigger.total()

    @property
    def seconds(self) -> float:
        """Length of the archive's history, in seconds."""
        return (self.end - self.begin).total_seconds()


def fired(triggers: Triggers, manifest: Manifest) -> Fired | None:
    """Let ``triggers`` decide after each diff of the manifest; None where there is no diff.

    A base that doesn't continue the one before counts as no trigger's and begins again. One that
    does is what other triggers, or a request, made: it shows the size of a base, no more.
    """
    first = next((entry for entry in manifest.artifacts if entry.is_snapshot), None)
    if first is None or manifest.artifacts[-1] is first:
        return None
    replay = _Replay(triggers, first)
    for artifact in manifest.artifacts:
        replay.take(artifact)
    return replay.found if replay.found.diffs else None


def summary(triggers: Triggers, manifest: Manifest | None) -> str:
    """One sentence for an operator: how often ``triggers`` would have fired, and what that costs.

    ``manifest``: None while there is no archive.
    """
    found = None if manifest is None else fired(triggers, manifest)
    if found is None:
        return "how often they would fire shows once the archive has diffs"
    history = (
        f"over the archive's {_time_text(found.seconds)} ({found.diffs} diffs, "
        f"{size(found.diff_bytes)})"
    )
    if not found.bases:
        return f"{history} none would have fired"
    by_trigger = ", ".join(f"{name} {times}" for name, times in found.by_trigger.most_common())
    return (
        f"{history} they would have fired {found.bases} times, every "
        f"{_time_text(found.seconds / found.bases)} ({by_trigger}): "
        f"{size(found.bases * found.base_bytes)} of bases, {size(found.base_bytes)} each"
    )


def _time_text(seconds: float) -> str:
    for length, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


class _Replay:
    def __init__(self, triggers: Triggers, first: Artifact) -> None:
        self.found = Fired(first.created_at, first.created_at, first.size_bytes)
        self._triggers = triggers
        self._base_at = first.created_at
        self._since = SinceSnapshot(0.0, first.size_bytes, first.row_count or 0)

    def take(self, artifact: Artifact) -> None:
        found, now = self.found, max(self.found.end, artifact.created_at)
        self._pass_time(now)
        found.end = now
        if artifact.is_snapshot:
            found.base_bytes = artifact.size_bytes
            self._since = replace(self._since, snapshot_bytes=artifact.size_bytes)
            if not artifact.continues:
                self._begin_again(now, artifact.row_count)
            return
        found.diffs += 1
        found.diff_bytes += artifact.size_bytes
        since = self._since = replace(
            self._since,
            age_s=(now - self._base_at).total_seconds(),
            rows=self._since.rows if artifact.rows is None else artifact.rows,
            diffs=self._since.diffs + 1,
            diff_bytes=self._since.diff_bytes + artifact.size_bytes,
            churn_records=self._since.churn_records + (artifact.change_count or 0),
        )
        if reason := self._triggers.due(since):
            self._fire(reason, now)

    def _pass_time(self, now: datetime) -> None:
        """Intervals that ended before ``now``, with what had come by then."""
        interval = self._triggers.max_interval
        while interval and now - self._base_at > timedelta(seconds=interval):
            self._fire("max_interval", self._base_at + timedelta(seconds=interval))

    def _fire(self, reason: str, now: datetime) -> None:
        self.found.by_trigger[reason] += 1
        self._begin_again(now, self._since.rows)

    def _begin_again(self, now: datetime, rows: int | None) -> None:
        self._base_at = now
        self._since = SinceSnapshot(0.0, self._since.snapshot_bytes, rows or 0)
