"""Encoding of a diff: once for each format, to a temporary file, for any number of uploads."""

import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO

from laredo_archive import codec
from laredo_archive.codec import DiffEncoder, EncodedFile
from laredo_archive.errors import SpoolUnavailable
from laredo_archive.manifest import object_keys
from laredo_archive.manifest.model import Artifact, ArtifactKind, FormatEntry
from laredo_archive.write.uploads import Content, shared
from laredo_model.column import Column
from laredo_model.line import Change
from laredo_model.position import History, Position

MEMORY_BYTES = 4 << 20
"""A smaller diff never touches the disk."""

_CHUNK = 2000


@dataclass(frozen=True)
class Window:
    """The range of positions that a diff covers, (from, to], and the table after it."""

    #: The epoch that the diff belongs to.
    epoch: int
    #: The history of its end; its beginning may be of one that goes on in it.
    history: History | None
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

    #: Its manifest entry, without keys.
    artifact: Artifact
    #: Its bytes, by format, for any number of readers at once.
    contents: dict[str, Content]
    #: Closes the temporary files that hold them, which frees memory and disk space.
    spool: ExitStack


def encode(
    table: str,
    key_prefix: str,
    window: Window,
    changes: Iterable[Change],
    *,
    formats: Sequence[str],
    columns: Sequence[Column],
    created_at: datetime,
    spool_directory: Path | None,
    go_keys: bool = False,
) -> EncodedDiff:
    """Encode the ``changes`` of ``window``, sorted by key, without the TRUNCATE.

    :raises SpoolUnavailable: if there is no room for it.
    """
    if not formats:
        raise ValueError(f"{table}: a diff needs at least one format")
    with ExitStack() as spool:
        try:
            files = {id_: spool.enter_context(_file(spool_directory)) for id_ in formats}
            encoders = {
                id_: codec.diff_encoder(id_, columns, file, go_keys=go_keys)
                for id_, file in files.items()
            }
            encoded = _encoded(encoders, changes, truncate=window.truncate)
        except OSError as failure:
            where = spool_directory or tempfile.gettempdir()
            raise SpoolUnavailable(table, where, failure) from failure
        contents = {
            id_: Content(
                f"{table}: the diff encoded as {id_}",
                result.size_bytes,
                result.sha256,
                partial(shared, files[id_], threading.Lock()),
            )
            for id_, result in encoded.items()
        }
        return EncodedDiff(
            _artifact(key_prefix, window, encoded, created_at), contents, spool.pop_all()
        )


def _file(directory: Path | None) -> IO[bytes]:
    return tempfile.SpooledTemporaryFile(MEMORY_BYTES, dir=str(directory) if directory else None)


def _encoded(
    encoders: Mapping[str, DiffEncoder], changes: Iterable[Change], *, truncate: bool
) -> dict[str, EncodedFile]:
    if truncate:
        for encoder in encoders.values():
            encoder.truncate()
    remaining = iter(changes)
    while chunk := list(islice(remaining, _CHUNK)):
        for encoder in encoders.values():
            encoder.write(chunk)
    return {id_: encoder.close() for id_, encoder in encoders.items()}


def _artifact(
    key_prefix: str, window: Window, encoded: Mapping[str, EncodedFile], created_at: datetime
) -> Artifact:
    epoch, start, end = window.epoch, window.from_position, window.to_position
    return Artifact(
        kind=ArtifactKind.DIFF,
        epoch=epoch,
        from_position=start,
        to_position=end,
        created_at=created_at,
        formats={
            id_: entry_of(result, object_keys.diff_key(key_prefix, epoch, start, end, id_))
            for id_, result in encoded.items()
        },
        change_count=max((result.records for result in encoded.values()), default=0),
        history=window.history,
        to_time=window.to_time,
        rows=window.rows,
        state_checksum=window.checksum,
        truncate=window.truncate,
        cancelled=window.cancelled,
        unchanged_until=window.unchanged_until,
    )


def entry_of(encoded: EncodedFile, key: str, *, exact: bool = True) -> FormatEntry:
    """Manifest entry of an encoded file; each destination adds its own URI."""
    return FormatEntry(
        uri="",
        size_bytes=encoded.size_bytes,
        key=key,
        sha256=encoded.sha256,
        sorted=encoded.sorted,
        splits=encoded.splits,
        blocks=encoded.blocks,
        exact=exact,
    )
