"""An object as a seekable file: the bytes of every place, with few requests."""

import io
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laredo_archive.codec import BadBytes, ByteSource
from laredo_archive.codec.ranged_file import ranged

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
