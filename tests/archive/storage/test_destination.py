"""Rules of every destination: nothing replaced, one winner, nothing half-finished visible."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from laredo_archive.errors import (
    ArtifactMissing,
    BadKey,
    CommitConflict,
    DestinationUnavailable,
    NameTaken,
)
from laredo_archive.storage.destination import Destination
from tests.support.archive.archiving import anybodys
from tests.support.archive.objects import keys, put, read

pytestmark = pytest.mark.parametrize("store", ["local", "moto", "s3_server"], indirect=True)

SIZES = [0, 1, 8 << 20, (8 << 20) + 1, 17 << 20]
"""Of objects: an S3 part, and more than one, and two."""


def content(size: int) -> bytes:
    return bytes(range(251)) * (size // 251) + bytes(size % 251)


@pytest.mark.parametrize("key", ["../x", "a/../../x", "/etc/x", "a//b", "", ".", "a/./b", "a\0b"])
def test_no_key_leads_out(destination: Destination, key: str) -> None:
    for use in (
        destination.uri_of,
        destination.get,
        destination.head,
        destination.open,
        destination.upload,
        destination.delete,
        lambda key: destination.swap(key, b"", None),
    ):
        with pytest.raises(BadKey, match="inside this destination"):
            use(key)


@pytest.mark.parametrize("size", SIZES)
def test_what_is_written_is_read(destination: Destination, size: int) -> None:
    data = content(size)
    upload = destination.upload("t/a")
    for start in range(0, size, 3 << 20):
        assert upload.write(memoryview(data)[start : start + (3 << 20)]) <= 3 << 20
    upload.finish()
    upload.abort()
    found = destination.head("t/a")
    assert found is not None
    assert (found.key, found.size_bytes) == ("t/a", size)
    assert abs(found.modified - datetime.now(UTC)) < timedelta(minutes=5)
    assert read(destination, "t/a") == data
    for offset in (1, size // 2, size - 1, size, size + 1):
        if offset > 0:
            assert read(destination, "t/a", offset) == data[offset:]


@pytest.mark.parametrize("size", [10, 9 << 20])
def test_an_upload_is_seen_only_when_finished(destination: Destination, size: int) -> None:
    upload = destination.upload("t/a")
    upload.write(content(size))
    assert destination.head("t/a") is None
    assert keys(destination) == []
    upload.finish()
    upload.abort()
    assert read(destination, "t/a") == content(size)
    assert keys(destination, "t/") == ["t/a"]


@pytest.mark.parametrize("size", [10, 9 << 20])
def test_an_upload_never_replaces(destination: Destination, size: int) -> None:
    put(destination, "t/a", b"one")
    upload = destination.upload("t/a")
    upload.write(content(size))
    for _ in range(2):
        with pytest.raises(NameTaken, match="t/a"):
            upload.finish()
    upload.abort()
    assert read(destination, "t/a") == b"one"


@pytest.mark.parametrize("size", [10, 9 << 20])
def test_of_uploads_that_race_one_wins(destination: Destination, size: int, store: str) -> None:
    if store == "moto":
        pytest.skip("its conditions aren't atomic (docs/benchmarks.md, S3 servers)")
    gate = threading.Barrier(4)
    outcomes = []

    def race(number: int) -> None:
        upload = destination.upload("t/a")
        upload.write(b"%d" % number * size)
        gate.wait()
        try:
            upload.finish()
            outcomes.append(number)
        except NameTaken:
            upload.abort()

    run_together(race, 4)
    assert [b"%d" % number * size for number in outcomes] == [read(destination, "t/a")]


def run_together(work: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("size", [0, 10, 9 << 20])
def test_an_aborted_upload_leaves_nothing(destination: Destination, size: int) -> None:
    upload = destination.upload("t/a")
    upload.write(content(size))
    upload.abort()
    upload.abort()
    assert keys(destination) == []
    with pytest.raises(DestinationUnavailable, match="t/a"):
        upload.finish()
    assert destination.head("t/a") is None


def test_reading_begins_where_asked(destination: Destination) -> None:
    put(destination, "t/a", b"0123456789")
    with closing(destination.open("t/a", 4)) as file:
        assert file.read(2) == b"45"
        assert file.tell() == 6
        assert file.read() == b"6789"
        assert file.read() == b""
        assert file.seek(1) == 1
        assert file.read(3) == b"123"
        assert file.seek(-2, 2) == 8
        assert file.read() == b"89"
    with pytest.raises(ArtifactMissing, match="t/b"):
        destination.open("t/b")
    with pytest.raises(ArtifactMissing, match="t/b"):
        destination.open("t/b", 4)


def test_what_isnt_there(destination: Destination) -> None:
    assert destination.get("t/m") is None
    assert destination.head("t/m") is None
    assert keys(destination, "t/") == []
    destination.delete("t/m")


def test_a_swap_needs_the_version_that_is_there(destination: Destination) -> None:
    with pytest.raises(CommitConflict):
        destination.swap("t/m", b"one", '"an etag"')
    first = destination.swap("t/m", b"one", None)
    with pytest.raises(CommitConflict):
        destination.swap("t/m", b"two", None)
    second = destination.swap("t/m", b"two", first.etag)
    with pytest.raises(CommitConflict):
        destination.swap("t/m", b"three", first.etag)
    found = destination.get("t/m")
    assert found is not None
    assert (found.data, found.version.etag) == (b"two", second.etag)
    assert abs(found.version.date - datetime.now(UTC)) < timedelta(minutes=5)
    destination.delete("t/m")
    with pytest.raises(CommitConflict):
        destination.swap("t/m", b"three", second.etag)
    assert destination.get("t/m") is None


def test_swaps_that_race_are_one_after_the_other(destination: Destination, store: str) -> None:
    if store == "moto":
        pytest.skip("its conditions aren't atomic (docs/benchmarks.md, S3 servers)")

    def add_one(_: int) -> None:
        done = 0
        while done < 10:
            found = destination.get("t/m")
            count, etag = (int(found.data), found.version.etag) if found else (0, None)
            try:
                destination.swap("t/m", b"%d" % (count + 1), etag)
            except CommitConflict:
                continue
            done += 1

    run_together(add_one, 4)
    found = destination.get("t/m")
    assert found is not None
    assert found.data == b"40"


def test_a_listing_is_by_prefix(destination: Destination) -> None:
    names = ["public.t/epoch=1/a", "public.t/epoch=10/é ü", "public.t/m", "public.t2/m", "m"]
    for name in names:
        put(destination, name, name.encode())
    assert keys(destination) == sorted(names)
    assert keys(destination, "public.t/") == sorted(names[:3])
    assert keys(destination, "public.t/epoch=1") == sorted(names[:2])
    assert keys(destination, "public.t") == sorted(names[:4])
    for found in destination.list("public.t/"):
        assert found.size_bytes == len(found.key.encode())
        assert read(destination, found.key) == found.key.encode()


@pytest.mark.parametrize("name", ["a b?c#d&e=f+g%25", "é ☃.日本", "a<b>'\"~!*()"])
def test_names_are_taken_as_they_are(destination: Destination, name: str) -> None:
    key = f"public.{name}/{name}"
    put(destination, key, name.encode())
    assert keys(destination, f"public.{name}/") == [key]
    assert read(destination, key, 1) == name.encode()[1:]
    destination.swap(f"{key}.m", b"one", None)
    assert destination.get(f"{key}.m") is not None
    half = destination.upload(f"{key}.half")
    half.write(content(9 << 20))
    assert destination.collect_unfinished(f"public.{name}/", timedelta(0), anybodys) == 1
    half.abort()
    destination.delete(key)
    assert keys(destination) == [f"{key}.m"]


@pytest.fixture
def left_behind(destination: Destination) -> Iterator[None]:
    upload = destination.upload("t/epoch=1/half")
    upload.write(content(9 << 20))
    yield
    upload.abort()


@pytest.mark.usefixtures("left_behind")
def test_left_overs_are_dropped(destination: Destination, store: str) -> None:
    put(destination, "t/epoch=1/a", b"kept")
    destination.swap("t/m", b"kept", None)
    if store != "moto":  # whose uploads were all begun in 2010
        assert destination.collect_unfinished("t/", timedelta(minutes=1), anybodys) == 0, (
            "it is young"
        )
    assert destination.collect_unfinished("other/", timedelta(0), anybodys) == 0
    assert destination.collect_unfinished("t/", timedelta(0), anybodys) == 1
    assert destination.collect_unfinished("t/", timedelta(0), anybodys) == 0
    assert keys(destination) == ["t/epoch=1/a", "t/m"]


def test_an_upload_that_was_dropped_meanwhile_says_so(destination: Destination) -> None:
    upload = destination.upload("t/a")
    upload.write(content(9 << 20))
    assert destination.collect_unfinished("", timedelta(0), anybodys) == 1
    with pytest.raises(DestinationUnavailable, match="t/a"):
        upload.finish()
    upload.abort()
    assert keys(destination) == []


def test_deleting_removes_one_object(destination: Destination) -> None:
    put(destination, "t/epoch=1/a", b"one")
    put(destination, "t/epoch=1/b", b"two")
    destination.delete("t/epoch=1/a")
    assert keys(destination) == ["t/epoch=1/b"]
    destination.delete("t/epoch=1/b")
    destination.delete("t/epoch=1/b")
    put(destination, "t/epoch=1/a", b"again")
    assert read(destination, "t/epoch=1/a") == b"again"


def test_the_same_place_has_one_name(new_destination: Callable[[], Destination]) -> None:
    one, other = new_destination(), new_destination()
    assert one.location != other.location
    assert one.uri.endswith("/")
    assert one.location.startswith(one.uri)
    assert one.uri_of("t/a") == f"{one.uri}t/a"
