"""Encoding of a diff: once for each format, to a temporary file, for any number of uploads."""

import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import IO

from laredo_archive import codec
from laredo_archive.codec import ByteSource, DiffEncoder, EncodedFile
from laredo_archive.errors import SpoolUnavailable
from laredo_archive.manifest import object_keys
from laredo_archive.manifest.model import Artifact, ArtifactKind, FormatEntry
from laredo_archive.write.uploads import Content
from laredo_model.column import Column
from laredo_model.line import Change
from laredo_model.position import History, Position

MEMORY_BYTES = 4 << 20
"""A smaller diff never touches the disk."""

_CHUNK = 2000


class DiffSpool:
    """The temporary file of one diff in every format; close() deletes it."""

    def __init__(self, table: str, directory: Path | None) -> None:
        self._table = table
        self._directory = directory
        self._files: dict[str, IO[bytes]] = {}

    def encode(
        self,
        formats: Sequence[str],
        columns: Sequence[Column],
        changes: Iterable[Change],
        *,
        truncate: bool,
        go_keys: bool = False,
    ) -> dict[str, EncodedFile]:
        """Write ``changes``, sorted by key, the TRUNCATE apart; what came out, by format.

        :raises SpoolUnavailable: if there is no room for it.
        """
        if not formats:
            raise ValueError(f"{self._table}: a diff in no format would be lost")
        try:
            encoders = {id_: self._encoder(id_, columns, go_keys) for id_ in formats}
            if truncate:
                for encoder in encoders.values():
                    encoder.truncate()
            for chunk in _chunks(changes):
                for encoder in encoders.values():
                    encoder.write(chunk)
            return {id_: encoder.close() for id_, encoder in encoders.items()}
        except OSError as failure:
            where = self._directory or tempfile.gettempdir()
            raise SpoolUnavailable(self._table, where, failure) from failure

    def _encoder(self, format_id: str, columns: Sequence[Column], go_keys: bool) -> DiffEncoder:
        codec.check_diff_format(format_id)
        file: IO[bytes] = tempfile.SpooledTemporaryFile(  # noqa: SIM115  # close() closes it
            MEMORY_BYTES, dir=str(self._directory) if self._directory else None
        )
        self._files[format_id] = file
        return codec.diff_encoder(format_id, columns, file, go_keys=go_keys)

    def content(self, format_id: str, encoded: EncodedFile) -> Content:
        """The encoded bytes, to be read any number of times, by several readers at once."""
        file, turn = self._files[format_id], threading.Lock()

        @contextmanager
        def opened() -> Iterator[ByteSource]:
            yield _Reader(file, turn)

        origin = f"{self._table}: the diff encoded as {format_id}"
        return Content(origin, encoded.size_bytes, encoded.sha256, opened)

    def close(self) -> None:
        """Free memory and disk space."""
        for file in self._files.values():
            file.close()


class _Reader:
    """A reader with its own position in a file that others read too."""

    def __init__(self, file: IO[bytes], turn: threading.Lock) -> None:
        self._file = file
        self._turn = turn
        self._offset = 0

    def read(self, size: int = -1, /) -> bytes:
        with self._turn:
            self._file.seek(self._offset)
            data = self._file.read(size)
        self._offset += len(data)
        return data


def _chunks(changes: Iterable[Change]) -> Iterator[list[Change]]:
    source = iter(changes)
    while chunk := list(islice(source, _CHUNK)):
        yield chunk


# Encoding of a diff: its bytes in every format, and its manifest entry but for keys.


@dataclass(frozen=True)
class Window:
    """The range of positions that a diff covers, (from, to], and the table after it."""

    #: The epoch that the diff belongs to.
    epoch: int
    #: The history of its positions.
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
    changes: Iterable[Change],
    *,
    formats: Sequence[str],
    columns: Sequence[Column],
    created_at: datetime,
    spool_directory: Path | None,
    go_keys: bool = False,
) -> EncodedDiff:
    """Encode the changes of ``window``.

    :raises SpoolUnavailable: if there is no room for it.
    """
    spool = DiffSpool(table, spool_directory)
    try:
        encoded = spool.encode(formats, columns, changes, truncate=window.truncate, go_keys=go_keys)
    except BaseException:
        spool.close()
        raise
    epoch, start, end = window.epoch, window.from_position, window.to_position
    artifact = Artifact(
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
    contents = {id_: spool.content(id_, result) for id_, result in encoded.items()}
    return EncodedDiff(artifact, contents, spool)


def entry_of(encoded: EncodedFile, key: str, *, exact: bool = True) -> FormatEntry:
    """A manifest's entry of what an encoder made; each destination adds its own URI."""
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
