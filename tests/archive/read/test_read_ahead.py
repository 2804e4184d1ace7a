"""Read-ahead fetches expected objects early, in bounded memory; errors come with the read."""

import io
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import pytest

from laredo_archive.errors import ArtifactMissing, DestinationUnavailable
from laredo_archive.read.objects import HELD_BYTES, PIECE_BYTES, WINDOW, WORKERS, ReadAhead, opener
from laredo_archive.storage.local import LocalDestination
from tests.support.processes import PATIENCE_S, wait_until

KEYS = [f"{number:03}" for number in range(100)]
LONG = bytes(range(256)) * (16 * HELD_BYTES // 256)


class Store:
    """Objects, and who reads what of them."""

    def __init__(self, data: Callable[[str], bytes] = str.encode) -> None:
        self._data = data
        self.opened: list[str] = []
        self.closed: set[str] = set()
        self.closing: Exception | None = None
        self.fetched = 0

    def fetch(self, key: str) -> BinaryIO:
        self.opened.append(key)
        store = self

        class Body(io.BytesIO):
            def read(self, size: int | None = -1, /) -> bytes:
                data = super().read(size)
                store.fetched += len(data)
                return data

            def close(self) -> None:
                store.closed.add(key)
                super().close()
                if store.closing is not None:
                    raise store.closing

        return Body(self._data(key))


def whole(ahead: ReadAhead, key: str) -> bytes:
    with closing(ahead.open(key)) as opened:
        return b"".join(iter(lambda: opened.read(1 << 16), b""))


def test_each_object_comes_whole_and_in_order() -> None:
    store = Store(lambda key: key.encode() * 300_000)
    ahead = ReadAhead(store.fetch)
    ahead.expect(KEYS[:20])
    for key in KEYS[:20]:
        assert whole(ahead, key) == key.encode() * 300_000
    assert sorted(store.opened) == KEYS[:20], "each was fetched once"
    wait_until(lambda: store.closed == set(KEYS[:20]), "each is closed")


def test_what_was_not_expected_is_fetched_all_the_same() -> None:
    ahead = ReadAhead(Store().fetch)
    assert whole(ahead, "a") == b"a"
    ahead.expect(["a", "b"])
    assert whole(ahead, "c") == b"c"
    assert whole(ahead, "b") == b"b"
    assert whole(ahead, "a") == b"a"
    assert whole(ahead, "a") == b"a"


def test_the_next_ones_are_under_way_at_the_same_time() -> None:
    """No request is answered before all of the window's were sent."""
    all_sent = threading.Barrier(WINDOW)

    def fetch(key: str) -> BinaryIO:
        all_sent.wait(PATIENCE_S)
        return io.BytesIO(key.encode())

    ahead = ReadAhead(fetch)
    ahead.expect(KEYS[:WINDOW])
    assert [whole(ahead, key) for key in KEYS[:WINDOW]] == [k.encode() for k in KEYS[:WINDOW]]


def test_no_more_than_the_window_is_begun() -> None:
    store = Store()
    ahead = ReadAhead(store.fetch)
    ahead.expect(KEYS)
    wait_until(lambda: len(store.closed) == WINDOW, "the window is fetched")
    assert sorted(store.opened) == KEYS[:WINDOW]
    ahead.open(KEYS[0])
    wait_until(lambda: len(store.closed) == WINDOW + 1, "the next one is begun")


def test_a_long_object_is_held_in_part_only() -> None:
    store = Store(lambda _: LONG)
    ahead = ReadAhead(store.fetch)
    opened = ahead.open("long")
    wait_until(lambda: store.fetched >= HELD_BYTES, "it is full")
    read = 0
    while piece := opened.read(10_000):
        assert piece == LONG[read : read + len(piece)]
        read += len(piece)
        assert store.fetched - read <= HELD_BYTES + PIECE_BYTES
    assert read == len(LONG)


def test_read_without_a_size_is_all_of_it() -> None:
    assert ReadAhead(Store(lambda _: LONG).fetch).open("long").read() == LONG


def test_a_failure_comes_where_it_is_read_and_again() -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(3)
            if not data:
                raise DestinationUnavailable("s3://b/a", "the cable is out")
            return data

    def fetch(key: str) -> BinaryIO:
        if key == "gone":
            raise ArtifactMissing("s3://b/gone")
        return Broken(b"abcdef")

    ahead = ReadAhead(fetch)
    ahead.expect(["gone", "broken"])
    broken = ahead.open("broken")
    assert broken.read(3) + broken.read(3) == b"abcdef"
    for _ in range(2):
        with pytest.raises(DestinationUnavailable, match="the cable is out"):
            broken.read(3)
    with pytest.raises(ArtifactMissing):
        ahead.open("gone").read(3)


def test_a_source_that_can_t_be_closed_ends_no_thread() -> None:
    store = Store()
    store.closing = OSError("not closed")
    ahead = ReadAhead(store.fetch)
    ahead.expect(KEYS)
    for key in KEYS[: WORKERS + 1]:
        with closing(ahead.open(key)) as opened:
            assert opened.read(3) == key.encode()
    assert ahead.open(KEYS[50]).read() == b"050", "the reader isn't told: it has every byte"


def test_what_is_given_up_is_let_go() -> None:
    store = Store(lambda _: LONG)
    ahead = ReadAhead(store.fetch)
    ahead.expect(KEYS[:3])
    with closing(ahead.open(KEYS[0])) as opened:
        assert opened.read(1) == LONG[:1]
    ahead.expect([])
    wait_until(lambda: store.closed >= set(store.opened) >= {KEYS[0]}, "they are closed")


def test_threads_end_when_there_is_nothing_to_do() -> None:
    before = set(threading.enumerate())
    ahead = ReadAhead(Store().fetch)
    ahead.expect(KEYS)
    assert whole(ahead, KEYS[0]) == b"000"
    assert set(threading.enumerate()) - before
    wait_until(lambda: not set(threading.enumerate()) - before, "they have ended")
    assert whole(ahead, KEYS[50]) == b"050", "and begin again"


def test_a_file_is_not_read_ahead(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(LONG)
    before = set(threading.enumerate())
    with closing(opener(LocalDestination(tmp_path)).open("a")) as opened:
        assert opened.read(10) == LONG[:10]
    assert set(threading.enumerate()) <= before
