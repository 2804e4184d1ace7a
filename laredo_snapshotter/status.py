"""What is known of one table at a moment, for /status, /metrics and the log."""

from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from laredo_model import position as position_


class State(StrEnum):
    """What a table's writer is doing."""

    STARTING = "starting"
    """Claiming the archive, or waiting for its destinations."""
    CONNECTING = "connecting"
    """The archive is claimed; no stream yet, or none any more."""
    COPYING = "copying"
    """The stream brings the base of a new epoch."""
    FOLLOWING = "following"
    """Changes arrive and become diffs."""
    HOLDING = "holding"
    """A destination is away: the next commit waits for it."""
    FENCED = "fenced"
    """Another writer has taken the archive over; this one never writes again."""
    FAILED = "failed"
    """Something that only people can put right."""
    STOPPED = "stopped"
    """The last diff was flushed."""


@dataclass(frozen=True)
class TableStatus:
    """One table. Positions are integers, times in seconds, sizes in bytes; None: not known."""

    table: str
    state: State
    ready: bool
    problem: str | None
    epoch: int | None
    head_position: int | None
    seen_position: int | None
    stream_position: int | None
    history: str | None
    rows: int | None
    state_checksum: str | None
    snapshot_created_at: datetime | None
    snapshot_age_seconds: float | None
    snapshot_rows: int | None
    snapshot_bytes: int | None
    diffs_since_snapshot: int
    diff_bytes: int
    churn_records: int
    buffer_depth: int
    buffer_bytes: int
    buffer_spilled_bytes: int
    waiting_bytes: int
    rebase: str | None
    """The trigger of the re-base that runs."""
    base_rows_written: int | None
    """Rows of the base that is being written."""
    last_rebase_problem: str | None
    cuts_forgotten: int
    writer_id: str | None
    holding: dict[str, Any] | None
    journal: dict[str, Any] | None
    """How far back the server's journal reaches, asked while the stream is closed."""
    destinations: tuple[str, ...]
    cas_conflicts: int
    destination_errors: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """As /status shows it: positions as text, times in ISO format."""
        shown = asdict(self)
        shown["state"] = self.state.value
        for name in ("head_position", "seen_position", "stream_position"):
            shown[name] = None if shown[name] is None else position_.text(shown[name])
        if self.snapshot_created_at is not None:
            shown["snapshot_created_at"] = self.snapshot_created_at.isoformat()
        shown["destinations"] = list(self.destinations)
        return shown
