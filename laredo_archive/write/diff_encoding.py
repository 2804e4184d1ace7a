"""Encoding of a diff: its bytes in every format, and its manifest entry but for keys."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from laredo_archive.manifest import object_keys
from laredo_archive.manifest.model import Artifact, ArtifactKind
from laredo_archive.write.base_upload import entry_of
from laredo_archive.write.diff_spool import DiffSpool
from laredo_archive.write.uploads import Content
from laredo_model.column import Column
from laredo_model.line import Change
from laredo_model.position import Position


@dataclass(frozen=True)
class Window:
    """The range of positions that a diff covers, (from, to], and the table after it."""

    #: Where the diff begins.
    from_position: Position
    #: Where it ends.
    to_position: Position
    #: PostgreSQL's commit time of the last transaction in it.
    to_time: datetime | None
    #: The table's rows at its end.
    rows: int
    #: The table's checksum at its end.
    checksum: str
    #: Whether it begins with a TRUNCATE.
    truncate: bool
    #: How many keys changed without a net change; None: unknown.
    cancelled: int | None
    #: The last position at which the table is as it is where the diff begins; None: only there.
    unchanged_until: Position | None = None


@dataclass(frozen=True)
class EncodedDiff:
    """A diff encoded in every format; its last owner closes the spool."""

    #: Its manifest entry, but for keys.
    artifact: Artifact
    #: Its bytes, by format.
    contents: dict[str, Content]
    #: The temporary file that holds them.
    spool: DiffSpool


def encode(
    table: str,
    key_prefix: str,
    window: Window,
    after: Artifact,
    changes: Iterable[Change],
    *,
    formats: Sequence[str],
    columns: Sequence[Column],
    created_at: datetime,
    spool_directory: Path | None,
    go_keys: bool = False,
) -> EncodedDiff:
    """Encode the changes of ``window``, which comes right after ``after``.

    :raises SpoolUnavailable: if there is no room for it.
    """
    spool = DiffSpool(table, spool_directory)
    try:
        encoded = spool.encode(formats, columns, changes, truncate=window.truncate, go_keys=go_keys)
    except BaseException:
        spool.close()
        raise
    start, end = window.from_position, window.to_position
    artifact = Artifact(
        kind=ArtifactKind.DIFF,
        epoch=after.epoch,
        from_position=start,
        to_position=end,
        created_at=created_at,
        formats={
            id_: entry_of(result, object_keys.diff_key(key_prefix, after.epoch, start, end, id_))
            for id_, result in encoded.items()
        },
        change_count=max((result.records for result in encoded.values()), default=0),
        history=after.history,
        to_time=window.to_time,
        rows=window.rows,
        state_checksum=window.checksum,
        truncate=window.truncate,
        cancelled=window.cancelled,
        unchanged_until=window.unchanged_until,
    )
    contents = {id_: spool.content(id_, result) for id_, result in encoded.items()}
    return EncodedDiff(artifact, contents, spool)
