"""Writes an encoder's bytes, and computes their size, sha256, order and splits.

Splits are (row key, byte offset) pairs about every block of a file, so that a
reader can take one key range of it (docs/archive-format.md).
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import lt
from typing import NamedTuple, Protocol

from laredo_archive.codec.block_sums import Blocks, BlockSums
from laredo_model.column import Column, key_columns
from laredo_model.key import begins_equal_rows
from laredo_service.files import Digest

SNAPSHOT_BLOCK = 16 * 1024 * 1024
DIFF_BLOCK = 256 * 1024
MAX_SPLITS = 4096
MAX_SORTED_KEY = 511
"""Bytes. Longer keys are cut and hashed in the store, so a snapshot read from it isn't in
their order; a file that holds one doesn't claim to be sorted."""


class ByteSink(Protocol):
    """The target of encoded bytes: an open file, an upload. It takes all of them or raises."""

    def write(self, data: bytes, /) -> object: ...


class EncodedFile(NamedTuple):
    """A finished file: ``records`` counts its rows, or its changes without the TRUNCATE line.

    ``blocks`` are there with the splits: what is between two of them is one block, or some.
    """

    size_bytes: int
    sha256: str
    sorted: bool
    splits: tuple[tuple[str, int], ...]
    records: int
    blocks: Blocks = ()


class RecordWriter(Protocol):
    """Interface that encoders write their records to."""

    def header(self, data: bytes) -> None: ...

    def put(
        self, keys: Sequence[bytes], data: bytes, sizes: Callable[[], Iterable[int]]
    ) -> None: ...

    def close(self) -> EncodedFile: ...


Output = Callable[[ByteSink, int, Sequence[Column]], RecordWriter]
"""Makes one, of a sink, the bytes of a block, and the table's columns."""


def _always(key: bytes) -> bool:
    return True


class FileWriter:
    """Writes bytes to ``sink``, and computes their sha256, splits and blocks."""

    def __init__(self, sink: ByteSink, block: int, columns: Sequence[Column] = ()) -> None:
        self._sink = sink
        # Equal rows of a table without a key are numbered from the first of them on.
        self._may_split = begins_equal_rows if columns and not key_columns(columns) else _always
        self._passed = Digest()
        self._count = 0
        self._sorted = True
        self._last_key: bytes | None = None
        self._least_block = self._block = block
        self._next_split = 0
        self._splits: list[tuple[bytes, int]] = []
        self._blocks, self._blocks_a_split = 0, 1
        self._sums = BlockSums()
        self._footer_at: int | None = None

    def header(self, data: bytes) -> None:
        """Bytes before the first row: the TRUNCATE line of a diff."""
        self._pass_on(data)

    def put(self, keys: Sequence[bytes], data: bytes, sizes: Callable[[], Iterable[int]]) -> None:
        """Write rows with these keys, as ``data``; ``sizes`` gives each row's bytes, if needed."""
        if not keys:
            return
        self.count(keys)
        if self._sorted and self._passed.size + len(data) > self._next_split:
            self._mark_splits(keys, sizes())
        self._pass_on(data)

    def count(self, keys: Sequence[bytes]) -> None:
        """Rows with these keys, whose bytes come with a block()."""
        if self._sorted:
            self._sorted = self._continues(keys)
        self._last_key = keys[-1]
        self._count += len(keys)

    def block(self, first_key: bytes, data: bytes) -> None:
        """Rows that can only be read together, the first with this key."""
        if self._blocks % self._blocks_a_split == 0 and self._may_split(first_key):
            self._splits.append((first_key, self._passed.size))
            self._sums.cut(self._passed.size)
        self._blocks += 1
        if len(self._splits) > MAX_SPLITS:
            self._splits = self._splits[::2]
            self._blocks_a_split *= 2
        self._pass_on(data)

    def footer(self, data: bytes) -> None:
        """Bytes after the last row, which are read apart from the rows."""
        self._footer_at = self._passed.size
        self._sums.cut(self._passed.size)
        self._pass_on(data)

    def close(self) -> EncodedFile:
        """The account. The sink stays open: it is the caller's."""
        enough = self._passed.size >= 2 * self._least_block and self._blocks != 1
        splits = self._splits if self._sorted and enough else []
        return EncodedFile(
            self._passed.size,
            self._passed.hex(),
            self._sorted,
            tuple((key.decode(), offset) for key, offset in splits),
            self._count,
            self._sums.blocks([at for _, at in splits] + [self._footer_at or 0]) if splits else (),
        )

    def _pass_on(self, data: bytes) -> None:
        self._sink.write(data)
        self._passed.update(data)
        self._sums.add(data)

    def _continues(self, keys: Sequence[bytes]) -> bool:
        last = self._last_key
        return (
            (last is None or last < keys[0])
            and all(map(lt, keys, islice(keys, 1, None)))
            and max(map(len, keys)) <= MAX_SORTED_KEY
        )

    def _mark_splits(self, keys: Sequence[bytes], sizes: Iterable[int]) -> None:
        offset = self._passed.size
        for key, size in zip(keys, sizes, strict=True):
            if offset >= self._next_split and self._may_split(key):
                self._splits.append((key, offset))
                self._sums.cut(offset)
                if len(self._splits) > MAX_SPLITS:
                    self._splits = self._splits[::2]
                    self._block *= 2
                self._next_split = (self._splits[-1][1] // self._block + 1) * self._block
            offset += size
