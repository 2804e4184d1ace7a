"""The head of an archive: the state from which its writer continues."""

from dataclasses import dataclass
from datetime import datetime

from laredo_archive.manifest.model import Artifact, Manifest
from laredo_model.column import Column
from laredo_model.position import History, Position


@dataclass(frozen=True)
class Head:
    """The end of the newest epoch; fields that older archives lack are None."""

    #: The newest epoch.
    epoch: int
    #: The newest artifact's to_position.
    position: Position
    #: The history of that position.
    history: History | None
    #: The table's rows there.
    rows: int | None
    #: The table's checksum there.
    checksum: str | None
    #: The epoch's columns.
    columns: tuple[Column, ...] | None
    #: The key's columns.
    key_fields: tuple[str, ...] | None
    to_time: datetime | None
    """PostgreSQL's commit time of the last transaction in the archive."""
    #: The number of the epoch's diffs.
    diffs_since_snapshot: int
    diff_bytes: int
    """Of the epoch's diffs, each in its largest format."""
    #: The changes of the epoch's diffs.
    diff_changes: int
    #: The base's to_position.
    snapshot_position: Position
    snapshot_bytes: int
    """Of the epoch's base, in its largest format."""
    #: The base's rows.
    snapshot_rows: int
    #: When the base was written.
    snapshot_created_at: datetime
    #: Up to where the archive is known to be complete.
    seen_position: Position | None
    #: When the newest artifact was written.
    committed_at: datetime
    #: When ``seen_position`` was; None: it never was.
    seen_at: datetime | None


def head_of(manifest: Manifest) -> Head | None:
    """The head of ``manifest``; None if it has no snapshot."""
    diffs: list[Artifact] = []
    for artifact in reversed(manifest.artifacts):
        if artifact.is_snapshot:
            return _head(manifest, artifact, diffs)
        diffs.append(artifact)
    return None


def _head(manifest: Manifest, base: Artifact, diffs: list[Artifact]) -> Head:
    last = manifest.artifacts[-1]
    return Head(
        epoch=last.epoch,
        position=last.to_position,
        history=last.history,
        rows=last.rows,
        checksum=last.state_checksum,
        columns=base.columns,
        key_fields=base.key_fields,
        to_time=last.to_time,
        diffs_since_snapshot=len(diffs),
        diff_bytes=sum(diff.size_bytes for diff in diffs),
        diff_changes=sum(diff.change_count or 0 for diff in diffs),
        snapshot_position=base.to_position,
        snapshot_bytes=base.size_bytes,
        snapshot_rows=base.row_count or 0,
        snapshot_created_at=base.created_at,
        seen_position=manifest.seen_position,
        committed_at=last.created_at,
        seen_at=manifest.seen_at,
    )
