"""Files in blocks of whole records: written with size, sha256 and checksums, read by blocks.

Splits are (row key, byte offset) pairs, one for about every block of a file, so
that a reader can take one key range of it (docs/archive-format.md).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from operator import lt
from typing import NamedTuple, Protocol

from laredo_archive.codec import struct_reader
from laredo_archive.errors import BadBytes
from laredo_model.column import Column, key_columns
from laredo_model.key import begins_equal_rows
from laredo_service.files import Digest

__all__ = ["BlockSums", "Blocks", "combined", "crc32"]

# Files in blocks of whole lines or whole messages, so that memory doesn't grow with the file.

READ_BYTES = 512 * 1024
MAX_RECORD = 2 * 1024 * 1024 * 1024
"""Bytes. PostgreSQL's values end at 1 GB; a longer line or message is damage."""


class ByteSource(Protocol):
    """Source of bytes: a file open for reading, a download."""

    def read(self, size: int = -1, /) -> bytes: ...


def ranged(
    stream: ByteSource, start: int | None, stop: int | None, size: int | None = None
) -> Iterator[bytes]:
    """The bytes from ``start`` to before ``stop``, in pieces of ``size`` bytes.

    A ``start`` needs a seekable stream.

    :raises BadBytes: if the stream ends before ``stop``.
    """
    if start:
        stream.seek(start)  # type: ignore[attr-defined]  # ranges are for seekable streams
    left = None if stop is None else stop - (start or 0)
    at_once = size or READ_BYTES
    while left is None or left > 0:
        piece = stream.read(at_once if left is None else min(at_once, left))
        if not piece:
            if left is not None:
                raise BadBytes(f"the file ends {left} bytes before byte {stop}")
            return
        if left is not None:
            left -= len(piece)
        yield piece


def lines(pieces: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Lines without their ``\\n``; only ``\\n`` ends one, and the last may lack it."""
    open_line: list[bytes] = []
    held = 0
    for piece in pieces:
        head, newline, rest = piece.partition(b"\n")
        open_line.append(head)
        if not newline:
            held += len(piece)
            if held > MAX_RECORD:
                raise BadBytes(f"a line longer than {MAX_RECORD} bytes")
            continue
        whole = rest.split(b"\n")
        last = whole.pop()
        yield [b"".join(open_line), *whole]
        open_line, held = [last], len(last)
    last = b"".join(open_line)
    if last:
        yield [last]


def line_blocks(stream: ByteSource, size: int) -> Iterator[bytes]:
    """Blocks of whole lines, about ``size`` bytes each, that end with a newline.

    :raises BadBytes: at a line longer than any row.
    """
    rest: list[bytes] = []
    held = 0
    while piece := stream.read(size):
        end = piece.rfind(b"\n") + 1
        if end == len(piece) and not held:
            yield piece
        elif end:
            yield b"".join([*rest, memoryview(piece)[:end]])
            rest, held = [piece[end:]], len(piece) - end
        else:
            rest.append(piece)
            held += len(piece)
            if held > MAX_RECORD:
                raise BadBytes(f"a line longer than {MAX_RECORD} bytes")
    if held:
        yield b"".join([*rest, b"\n"])


def messages(pieces: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Messages, each with its length in front as a varint.

    https://protobuf.dev/programming-guides/techniques/#streaming

    :raises BadBytes: if the stream ends inside of one.
    """
    parts: list[bytes] = []
    held, needed = 0, 1
    for piece in pieces:
        parts.append(piece)
        held += len(piece)
        if held < needed:
            continue
        found, rest, needed = _whole_messages(b"".join(parts))
        if found:
            yield found
        # Not an empty one: one piece alone is joined without a copy.
        parts, held = [rest] if rest else [], len(rest)
    if held:
        raise BadBytes(f"the file ends inside a message, {held} bytes after its start")


def _whole_messages(buffer: bytes) -> tuple[list[bytes], bytes, int]:
    """The whole messages, the rest after them, and the bytes that the rest must grow to."""
    scanned = (
        None if struct_reader.module is None else struct_reader.module.messages(buffer, MAX_RECORD)
    )
    if scanned is not None:
        return scanned[0], buffer[scanned[1] :], scanned[2]
    found = []
    at, size, needed = 0, len(buffer), 1
    while at < size:
        header = _length(buffer, at)
        if header is None:
            break
        length, start = header
        if start + length > size:
            needed = start + length - at
            break
        at = start + length
        found.append(buffer[start:at])
    return found, buffer[at:], needed


def _length(buffer: bytes, at: int) -> tuple[int, int] | None:
    """(length, where the message starts), None if the buffer ends inside the length."""
    value = shift = 0
    for index in range(at, min(at + 10, len(buffer))):
        byte = buffer[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > MAX_RECORD:
                raise BadBytes(f"a message of {value} bytes")
            return value, index + 1
        shift += 7
    if len(buffer) - at >= 10:
        raise BadBytes("a message's length has no end")
    return None


# CRC-32 of each block of a file, so that a part of it can be checked without the rest.
#
# zlib-ng computes it in a thirteenth of zlib's time.
#
# Where blocks become one, their checksums are combined without their bytes: that of A followed by B
# is the CRC of A times x^(8 |B|), modulo CRC-32's polynomial, plus the CRC of B
# (https://www.zlib.net/manual.html, crc32_combine).

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # Spark's workers may have less than the project installs
    from zlib import crc32


Blocks = tuple[tuple[int, int], ...]
"""Start of each block, and its CRC-32; a block ends where the next begins, or with the file."""

_POLYNOMIAL = 0xEDB88320
_ONE, _X = 1 << 31, 1 << 30
"""The highest power of a polynomial is in the lowest bit."""


class BlockSums:
    """The checksums of a file's blocks, while it is written."""

    def __init__(self) -> None:
        self._size = self._begun = self._sum = 0
        self._cuts: list[int] = []
        self._blocks: list[tuple[int, int, int]] = []

    def cut(self, offset: int) -> None:
        """A block begins at ``offset``, which isn't written yet; offsets ascend."""
        self._cuts.append(offset)

    def add(self, data: bytes) -> None:
        """The next bytes."""
        view, start = memoryview(data), self._size
        for offset in self._cuts:
            self._take(view[self._size - start : offset - start])
            self._end_block()
        self._cuts.clear()
        self._take(view[self._size - start :])

    def blocks(self, begins: Collection[int]) -> Blocks:
        """Blocks that begin at 0, and at each of ``begins`` where one was cut."""
        self._end_block()
        wanted = {0, *begins}
        found: list[tuple[int, int]] = []
        for offset, size, sum_ in self._blocks:
            if offset in wanted:
                found.append((offset, sum_))
            else:
                begun, before = found[-1]
                found[-1] = begun, combined(before, sum_, size)
        return tuple(found)

    def _take(self, data: memoryview) -> None:
        self._sum = crc32(data, self._sum)
        self._size += len(data)

    def _end_block(self) -> None:
        if self._size > self._begun:
            self._blocks.append((self._begun, self._size - self._begun, self._sum))
            self._begun, self._sum = self._size, 0


def combined(first: int, second: int, size: int) -> int:
    """The CRC-32 of two pieces one after the other; ``size``: bytes of the second."""
    power, bits = _ONE, size * 8
    for bit in range(bits.bit_length()):
        if bits >> bit & 1:
            power = _times(power, _squared(bit))
    return _times(power, first) ^ second


@cache
def _squared(times: int) -> int:
    """The polynomial x, squared ``times`` times."""
    return _X if times == 0 else _times(_squared(times - 1), _squared(times - 1))


def _times(a: int, b: int) -> int:
    product, bit = 0, _ONE
    while bit:
        if a & bit:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
        bit >>= 1
    return product


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

    A file with splits has ``blocks`` too: from one split to the next there are one or more.
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
"""Makes a RecordWriter of a sink, the bytes of a block, and the table's columns."""


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
        """Write bytes before the first row: the TRUNCATE line of a diff."""
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
        """Count rows with these keys, whose bytes come with a block()."""
        if self._sorted:
            self._sorted = self._continues(keys)
        self._last_key = keys[-1]
        self._count += len(keys)

    def block(self, first_key: bytes, data: bytes) -> None:
        """Write rows that can only be read together, the first with this key."""
        if self._blocks % self._blocks_a_split == 0 and self._may_split(first_key):
            self._splits.append((first_key, self._passed.size))
            self._sums.cut(self._passed.size)
        self._blocks += 1
        if len(self._splits) > MAX_SPLITS:
            self._splits = self._splits[::2]
            self._blocks_a_split *= 2
        self._pass_on(data)

    def footer(self, data: bytes) -> None:
        """Write bytes after the last row, which are read apart from the rows."""
        self._footer_at = self._passed.size
        self._sums.cut(self._passed.size)
        self._pass_on(data)

    def close(self) -> EncodedFile:
        """End the file; the sink stays open."""
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
