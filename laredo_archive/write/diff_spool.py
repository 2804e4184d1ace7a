"""The spool of a diff: encoded once per format to a temporary file, for any number of uploads."""

import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO

from laredo_archive import codec
from laredo_archive.codec import ByteSource, DiffEncoder, EncodedFile
from laredo_archive.errors import SpoolUnavailable
from laredo_archive.write.uploads import Content
from laredo_model.column import Column
from laredo_model.line import Change

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
