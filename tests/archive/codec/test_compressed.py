"""Compressed files: the same records for every range as the plain ones, and no hostile frame."""

import io
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from zlib import crc32

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from laredo_archive import codec
from laredo_archive.codec import BadBytes, ByteSource, jsonl, protobuf
from laredo_archive.codec.ranged_file import ranged
from laredo_archive.codec.zstd_frames import PlainBytes
from laredo_model.column import Column
from tests.support.archive.encoding import write_snapshot

COLUMNS = [Column("id", "text", -1, False, 1, 1), Column("name", "text", -1, True, 2)]
PLAIN = ("jsonl", "protobuf")
Rows = dict[bytes, bytes]


def rows_of(sizes: list[int]) -> Rows:
    return {
        b"%06d" % number: b'{"id":"%06d","name":"%s"}' % (number, b"x" * size)
        for number, size in enumerate(sizes)
    }


def parts_of(data: bytes, encoded: codec.EncodedFile) -> list[tuple[int, int]]:
    return list(pairwise([0, *(at for _, at in encoded.splits if at), len(data)]))


def frame(plain: bytes, **more: bool) -> bytes:
    made = {"write_checksum": True, "write_content_size": True, **more}
    return zstandard.ZstdCompressor(**made).compress(plain)


@pytest.mark.parametrize("plain", PLAIN)
@given(
    sizes=st.lists(st.integers(0, 90), min_size=1, max_size=120),
    batch=st.integers(1, 50),
    block=st.integers(1, 700),
)
def test_every_range_of_a_base_is_as_in_the_plain_one(
    plain: str, sizes: list[int], batch: int, block: int
) -> None:
    rows = rows_of(sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "SNAPSHOT_BLOCK", block)
        patch.setattr(protobuf, "SNAPSHOT_BLOCK", block)
        expected, _ = write_snapshot(plain, COLUMNS, rows, batch)
        written, encoded = write_snapshot(f"{plain}.zst", COLUMNS, rows, batch)
    assert PlainBytes(io.BytesIO(written)).read() == expected
    assert (encoded.sorted, encoded.records) == (True, len(rows))
    # More than a frame: each begins at a split, and a split at the first row.
    frames = written.count(b"\x28\xb5\x2f\xfd")
    assert len(encoded.splits) == (frames if frames > 1 else 0)
    # None holds more than a block, or one longer record (of 150 bytes at most).
    assert frames >= len(expected) / max(block, 150)
    found, key_of_next = [], [key.encode() for key, _ in encoded.splits] or [next(iter(rows))]
    for (start, stop), first_key in zip(parts_of(written, encoded), key_of_next, strict=True):
        part = [
            row
            for keys, lines in codec.read_snapshot(
                f"{plain}.zst", COLUMNS, io.BytesIO(written), start, stop
            )
            for row in zip(keys, lines, strict=True)
        ]
        assert part[0][0] == first_key
        found += part
    assert found == list(rows.items())
    for (start, stop), (begun, checksum) in zip(
        parts_of(written, encoded), encoded.blocks, strict=False
    ):
        assert (begun, checksum) == (start, crc32(written[start:stop]))


def test_a_record_longer_than_a_block_is_a_frame_of_its_own() -> None:
    rows = rows_of([10, 20 << 20, 10])
    written, encoded = write_snapshot("jsonl.zst", COLUMNS, rows)
    assert [key for key, _ in encoded.splits] == ["000000", "000001", "000002"]
    found = codec.read_snapshot("jsonl.zst", COLUMNS, io.BytesIO(written))
    assert [line for _, lines in found for line in lines] == list(rows.values())


@given(
    parts=st.lists(st.binary(max_size=300), max_size=5),
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=30),
)
def test_pieces_of_any_size_give_the_same_bytes(parts: list[bytes], sizes: list[int]) -> None:
    source = PlainBytes(io.BytesIO(b"".join(map(frame, parts))))
    expected = b"".join(parts)
    found = b""
    for size in sizes:
        piece = source.read(size)
        assert piece == expected[len(found) : len(found) + size]
        found += piece
    assert found + source.read() == expected


def with_content_size(size: int) -> bytes:
    """A frame's header that claims so many bytes, and a block of some."""
    descriptor = 3 << 6 | 0x04
    return b"\x28\xb5\x2f\xfd" + bytes([descriptor, 0x58]) + size.to_bytes(8, "little")


WHOLE = frame(b"some text that is here " * 20)
HOSTILE = {
    "claims 10 GB": (with_content_size(10 << 30) + b"\x01\x00\x00", "10737418240 bytes, more than"),
    "claims more than it has": (with_content_size(99) + b"\x09\x00\x00a____", "."),
    "has more than it claims": (with_content_size(1) + b"\x03\x00\x10a____", "."),
    "a window of 16 MB": (
        b"\x28\xb5\x2f\xfd" + bytes([3 << 6 | 4, 0x70]) + (1).to_bytes(8, "little")
        + b"\x09\x00\x00a____",
        "memory",
    ),
    "garbage after it": (WHOLE + b"garbage!", "no zstd frame begins at byte"),
    "a few bytes after it": (WHOLE + b"\x28\xb5", "ends inside a zstd frame"),
    "a skippable frame": (WHOLE + b"\x50\x2a\x4d\x18\x00\x00\x00\x00", "no zstd frame begins"),
    "without a checksum": (frame(b"x" * 99, write_checksum=False), "lacks its content's size"),
    "without a size": (frame(b"x" * 99, write_content_size=False), "lacks its content's size"),
    "a reserved block": (with_content_size(1) + b"\x0f\x00\x00a____", "no frame may have"),
    "a block of 2 MB": (with_content_size(1) + b"\x03\x00\xff" + b"a" * 9, "no frame may have"),
    "another checksum": (WHOLE[:-1] + bytes([WHOLE[-1] ^ 1]), "can't be read"),
    "plain lines": (b'{"id":1}\n', "no zstd frame begins at byte 0"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_frames_are_refused(what: str) -> None:
    data, says = HOSTILE[what]
    source = PlainBytes(io.BytesIO(data))
    with pytest.raises(BadBytes, match=says):
        while source.read(1000):
            pass


def test_a_frame_cut_anywhere_is_refused() -> None:
    for end in range(1, len(WHOLE)):
        with pytest.raises(BadBytes):
            PlainBytes(io.BytesIO(WHOLE[:end])).read()
        with pytest.raises(BadBytes):
            PlainBytes(io.BytesIO(WHOLE), None, end).read()
    with pytest.raises(BadBytes, match="before byte"):
        PlainBytes(io.BytesIO(WHOLE), None, len(WHOLE) + 1).read()


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_a_changed_byte_is_refused_or_changes_nothing(at: int, value: int) -> None:
    changed = WHOLE[:at] + bytes([value]) + WHOLE[at + 1 :]
    try:
        found = PlainBytes(io.BytesIO(changed)).read()
    except BadBytes:
        return
    assert found == PlainBytes(io.BytesIO(WHOLE)).read()


def test_a_gigabyte_in_some_kilobytes_takes_no_more_memory_than_is_read() -> None:
    size = 1 << 30
    compressor = zstandard.ZstdCompressor(write_checksum=True).compressobj(size=size)
    zeros = bytes(1 << 20)
    bomb = b"".join([*(compressor.compress(zeros) for _ in range(1 << 10)), compressor.flush()])
    assert len(bomb) < size // 10_000
    source, found = PlainBytes(io.BytesIO(bomb)), 0
    tracemalloc.start()
    while piece := source.read(512 << 10):
        found += len(piece)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == size
    assert most < 8 << 20


def test_without_the_library_it_is_named() -> None:
    program = (
        "import sys; sys.modules['zstandard'] = None\n"
        "import io, importlib.util\n"
        "from laredo_archive import codec\n"
        "codec.find_spec = lambda name: None\n"
        "assert not codec.is_readable('jsonl.zst') and codec.is_readable('jsonl')\n"
        "try:\n"
        "    codec.read_diff('jsonl.zst', None, io.BytesIO())\n"
        "except codec.ZstandardMissing as missing:\n"
        "    print(missing)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "pip install zstandard" in done.stdout


# An object as a seekable file: the bytes of every place, with few requests.


DATA = random.Random(1).randbytes(1 << 20)


class Object:
    """Counts how often it is opened, and whether that was closed again."""

    def __init__(self, data: bytes = DATA) -> None:
        self.data = data
        self.opened: list[int] = []
        self.open = 0

    @contextmanager
    def at(self, offset: int) -> Iterator[ByteSource]:
        self.opened.append(offset)
        self.open += 1
        try:
            yield io.BytesIO(self.data[offset:])
        finally:
            self.open -= 1


_PLACES = st.tuples(st.integers(0, len(DATA) + 10), st.integers(0, 300_000))


@given(st.lists(_PLACES, max_size=12))
def test_any_places_in_any_order(places: list[tuple[int, int]]) -> None:
    object_ = Object()
    with ranged(object_.at, len(DATA)) as file:
        for offset, size in places:
            file.seek(offset)
            assert file.read(size) == DATA[offset : offset + size]
        assert file.seek(-7, io.SEEK_END) == len(DATA) - 7
        assert file.read() == DATA[-7:]
    assert object_.open == 0


def test_what_follows_is_read_on_and_small_gaps_through() -> None:
    object_ = Object()
    with ranged(object_.at, len(DATA)) as file:
        for offset in (0, 100_000, 300_000, 900_000):
            file.seek(offset)
            file.read(90_000)
        assert object_.opened == [0, 900_000]
        file.seek(5)
        file.read(1)
        assert object_.opened == [0, 900_000, 5]
        assert object_.open == 1
    assert object_.open == 0


def test_an_object_that_ends_early() -> None:
    object_ = Object(DATA[:1000])
    with ranged(object_.at, len(DATA)) as file:
        with pytest.raises(BadBytes, match="the file ends at byte 1000, before its 1048576 bytes"):
            file.read(2000)
        file.seek(5000)
        with pytest.raises(BadBytes):
            file.read(1)
