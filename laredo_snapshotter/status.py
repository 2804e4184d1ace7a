"""The status of one table at a moment, for /status, /metrics and the log."""

from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from laredo_model import position as position_


class WriterState(StrEnum):
    """State of a table's writer."""

    STARTING = "starting"
    """Claiming the archive, or waiting for its destinations."""
    CONNECTING = "connecting"
    """The archive is claimed; no stream yet, or none any more."""
    COPYING = "copying"
    """The stream brings the base of a new epoch."""
    FOLLOWING = "following"
    """Changes arrive and become diffs."""
    HOLDING = "holding"
    """A destination is unavailable, or its manifest damaged: the next commit waits for it."""
    FENCED = "fenced"
    """Another writer has taken the archive over; this one never writes again."""
    FAILED = "failed"
    """Something that only people can repair."""
    STOPPED = "stopped"
    """The last diff was flushed."""

    @property
    def ended(self) -> bool:
        """True if the writer writes nothing more in this process."""
        return self in (WriterState.FENCED, WriterState.FAILED, WriterState.STOPPED)


@dataclass(frozen=True)
class DestinationStatus:
    """One of a table's destinations."""

    uri: str
    place: str
    """The URI, and the endpoint if it isn't AWS's."""
    state: Literal["level", "away", "unknown"]
    """level: caught up with the others, but for a commit that is on its way; away: unavailable."""
    since: datetime | None
    problem: str | None
    head_position: int | None
    """Head that its manifest had when it was last read or written."""
    errors: int
    collection: dict[str, Any] | None
    """Result of the last collection of garbage; None before the first."""

    def to_json(self) -> dict[str, Any]:
        """As /status shows it."""
        shown = asdict(self)
        shown["since"] = None if self.since is None else self.since.isoformat()
        shown["head_position"] = _text(self.head_position)
        return shown


@dataclass(frozen=True)
class SinkStatus:
    """One of a table's sinks."""

    name: str
    type: str
    outstanding: int | None
    """Artifacts that it is still to be notified of; None before the archive is claimed."""
    missed: int
    """Artifacts that left the manifest before it was notified of them."""
    last_notified: dict[str, Any] | None
    """Epoch and position of the newest artifact that it was notified of."""
    last_notified_at: datetime | None
    since: datetime | None
    """Time since which it has refused notices."""
    problem: str | None

    def to_json(self) -> dict[str, Any]:
        """As /status shows it."""
        shown = asdict(self)
        for name in ("last_notified_at", "since"):
            at = shown[name]
            shown[name] = None if at is None else at.isoformat()
        return shown


@dataclass(frozen=True, kw_only=True)
class TableWriterStatus:
    """One table. Positions are integers, times in seconds, sizes in bytes; None: not known."""

    table: str
    """``schema.name``."""
    state: WriterState
    ready: bool
    """True if it has its base and follows the stream."""
    problem: str | None
    """Problem that keeps it from being ready."""
    epoch: int | None = None
    """The archive's newest: a base and the diffs after it."""
    head_position: int | None = None
    """Position where the archive ends."""
    seen_position: int | None = None
    """Position up to which the manifest records no change."""
    committed_at: datetime | None = None
    """Time of the archive's newest artifact."""
    complete_at: datetime | None = None
    """Time when the archive was last known to be complete: a commit, or ``seen_position``
    raised."""
    server: str | None = None
    """The server that the stream comes from, or came from last."""
    stream_position: int | None = None
    """Every transaction up to here was taken from the stream."""
    history: str | None = None
    """The server's WAL history that ``stream_position`` belongs to."""
    rows: int | None = None
    """Rows of the table where the archive ends."""
    state_checksum: str | None = None
    """Checksum of these rows."""
    snapshot_created_at: datetime | None = None
    """Time of the epoch's base."""
    snapshot_age_seconds: float | None = None
    snapshot_rows: int | None = None
    """Of the epoch's base."""
    snapshot_bytes: int | None = None
    """Of the epoch's base."""
    diffs_since_snapshot: int = 0
    diff_bytes: int = 0
    """Of these diffs."""
    churn_records: int = 0
    """Net changes since the epoch's base, including those that aren't in the archive yet."""
    buffer_depth: int = 0
    """Changed rows that aren't in the archive, frozen and spilled ones too."""
    buffer_bytes: int = 0
    """Memory of the changes since the last cut."""
    buffer_spilled_bytes: int = 0
    """Disk space of all changed rows that aren't in the archive."""
    waiting_bytes: int = 0
    """Memory of the frozen changes that wait to be committed."""
    rebase: str | None = None
    """The trigger of the re-base that runs."""
    base_rows_written: int | None = None
    """Rows of the base that is being written."""
    last_rebase_problem: str | None = None
    """Error of the last re-base, if it failed."""
    rebase_failing_seconds: float = 0.0
    """Time since the first of the failed re-bases; 0.0: the last one succeeded, or there was
    none."""
    cuts_forgotten: int = 0
    """Cuts that were given up because the stream didn't reach them in time."""
    writer_id: str | None
    """Name of this process in the archive's claim."""
    holding: dict[str, Any] | None = None
    """Reason why the next commit waits for a destination, and since when."""
    boundary_position: int | None = None
    """The server's verified position, up to which artifacts may end; None if not sent."""
    unverified: dict[str, Any] | None = None
    """Position that the next artifact waits for: the server must verify its end."""
    journal: dict[str, Any] | None = None
    """Extent of the server's journal, asked while the stream is closed."""
    destinations: tuple[DestinationStatus, ...]
    """As configured."""
    sinks: tuple[SinkStatus, ...]
    cas_conflicts: int

    def to_json(self) -> dict[str, Any]:
        """As /status shows it: positions as text, times in ISO format."""
        shown = asdict(self)
        shown["state"] = self.state.value
        names = ("head_position", "seen_position", "stream_position", "boundary_position")
        for name in names:
            shown[name] = _text(shown[name])
        for name in ("snapshot_created_at", "committed_at", "complete_at"):
            at = shown[name]
            shown[name] = None if at is None else at.isoformat()
        shown["destinations"] = [each.to_json() for each in self.destinations]
        shown["sinks"] = [sink.to_json() for sink in self.sinks]
        return shown


def _text(position: int | None) -> str | None:
    return None if position is None else position_.text(position)
