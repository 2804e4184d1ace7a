"""Rules of a directory as a destination: durability, locks, errors, hidden files."""

import multiprocessing
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from laredo_archive import failpoint
from laredo_archive.errors import (
    CommitConflict,
    CommitStateUnknown,
    DestinationDenied,
    DestinationUnavailable,
)
from laredo_archive.storage.local import UNFINISHED, LocalDestination
from tests.support.archive.archiving import anybodys


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "not yet" / "there"


@pytest.fixture
def local(directory: Path) -> LocalDestination:
    return LocalDestination(directory)


def put(local: LocalDestination, key: str, data: bytes) -> None:
    upload = local.upload(key)
    upload.write(data)
    upload.finish()


def read(local: LocalDestination, key: str) -> bytes:
    with local.open(key) as file:
        return file.read()


def files(directory: Path) -> Iterator[str]:
    return (
        path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()
    )


def test_the_uri_is_canonical(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    real, link = LocalDestination(tmp_path / "real"), LocalDestination(tmp_path / "link/../real")
    assert real.uri == link.uri == f"file://{tmp_path}/real/"
    assert real.uri_of("t/epoch=1/diff-0_1-0_2.jsonl").endswith("/t/epoch=1/diff-0_1-0_2.jsonl")
    assert LocalDestination("/a b").uri == "file:///a%20b/"


def _add_one(directory: Path, times: int) -> None:
    local = LocalDestination(directory)
    done = 0
    while done < times:
        found = local.get("t/m")
        count, etag = (int(found.data), found.version.etag) if found else (0, None)
        try:
            local.swap("t/m", b"%d" % (count + 1), etag)
        except CommitConflict:
            continue
        done += 1


def test_swaps_of_several_processes_are_one_after_the_other(directory: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_add_one, args=(directory, 25)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    found = LocalDestination(directory).get("t/m")
    assert found is not None
    assert found.data == b"100"


def test_hidden_files_are_nobodys_objects(local: LocalDestination, directory: Path) -> None:
    local.swap("t/m", b"one", None)
    upload = local.upload("t/epoch=1/a")
    upload.write(b"x")
    assert {found.key for found in local.list("")} == {"t/m"}
    assert any(name.startswith("t/.m.lock") for name in files(directory))
    upload.abort()


def test_left_overs_are_collected_once_they_are_old(
    local: LocalDestination, directory: Path
) -> None:
    put(local, "t/epoch=1/a", b"kept")
    local.swap("t/m", b"kept", None)
    old, young = (local.upload(f"t/epoch=1/{name}") for name in ("old", "young"))
    old.write(b"x")
    left = directory / "t/epoch=1"
    [path] = left.glob(f"{UNFINISHED}old*")
    long_ago = datetime.now(UTC).timestamp() - 3600
    os.utime(path, (long_ago, long_ago))
    assert local.collect_unfinished("t/", timedelta(minutes=30), anybodys) == 1
    assert not path.exists()
    assert len(list(left.glob(f"{UNFINISHED}young*"))) == 1
    assert {found.key for found in local.list("t/")} == {"t/epoch=1/a", "t/m"}
    old.abort()
    young.abort()


def test_a_swap_that_goes_on_is_no_left_over(
    local: LocalDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_ago = timedelta(seconds=-1)
    beside = threading.Thread(target=local.collect_unfinished, args=("t/", long_ago, anybodys))

    def collect_beside(point: str) -> None:
        if point == "local.swap.synced":
            beside.start()
            beside.join(0.3)  # as long as it would need, if it didn't wait for the swap

    monkeypatch.setattr(failpoint, "_reached", collect_beside)
    local.swap("t/manifest.json", b"{}", None)
    beside.join()
    assert read(local, "t/manifest.json") == b"{}"


def test_what_a_killed_swap_left_is_dropped(local: LocalDestination, directory: Path) -> None:
    local.swap("t/manifest.json", b"{}", None)
    left = directory / f"t/{UNFINISHED}manifest.json-00"
    left.touch()
    assert local.collect_unfinished("t/", timedelta(seconds=-1), anybodys) == 1
    assert not left.exists()


def test_deleting_removes_an_empty_directory_and_nothing_else(
    local: LocalDestination, directory: Path
) -> None:
    put(local, "t/epoch=1/a", b"one")
    put(local, "t/epoch=1/b", b"two")
    local.delete("t/epoch=1/a")
    assert local.head("t/epoch=1/b") is not None
    local.delete("t/epoch=1/b")
    assert not (directory / "t/epoch=1").exists()
    local.delete("t/epoch=1/b")
    put(local, "t/epoch=1/a", b"again")
    assert read(local, "t/epoch=1/a") == b"again"


def test_a_lock_that_is_held_too_long_is_told(
    local: LocalDestination, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    local.swap("t/m", b"one", None)
    monkeypatch.setattr("laredo_archive.storage.local.LOCK_PATIENCE_S", 0.05)
    with (directory / "t/.m.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DestinationUnavailable, match="another process has held this lock"):
            local.swap("t/m", b"two", None)
    assert local.get("t/m") is not None


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    local = LocalDestination(tmp_path / "file" / "archive")
    with pytest.raises(DestinationUnavailable, match=r"Not a directory at .*/file"):
        local.upload("t/a")


def test_a_name_that_linking_is_refused_for_says_who_and_where(
    local: LocalDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = local.upload("t/a")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted", "/there/t/a")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(DestinationDenied, match=r"not permitted at /there/t/a; let uid \d+"):
        upload.finish()
    upload.abort()


def test_what_could_not_be_synced_is_unclear_and_finished_again(
    local: LocalDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = local.upload("t/a")
    upload.write(b"one")
    real = os.fsync
    calls = []

    def fail_second(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:  # the first is the file's, the second the directory's
            raise OSError(5, "Input/output error")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fail_second)
    with pytest.raises(CommitStateUnknown, match="directory couldn't be synced"):
        upload.finish()
    upload.finish()
    assert read(local, "t/a") == b"one"


def test_after_a_failed_sync_of_the_data_nothing_is_linked(
    local: LocalDestination, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = local.upload("t/a")
    upload.write(b"one")

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    for _ in range(2):
        with pytest.raises(DestinationUnavailable):
            upload.finish()
    assert list(files(directory)) == []


def test_everything_is_synced_before_it_is_named(
    local: LocalDestination, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Power-loss order: data, then name, then the directory that holds the name."""
    events: list[str] = []
    sync, link, rename = os.fsync, os.link, os.rename

    def synced(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        events.append("sync directory" if path.is_dir() else "sync file")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", lambda *a, **more: (events.append("link"), link(*a, **more)))
    monkeypatch.setattr(
        os, "rename", lambda *a, **more: (events.append("rename"), rename(*a, **more))
    )
    put(local, "t/a", b"one")
    made = [event for event in events if event == "sync directory"]
    assert events[-3:] == ["sync file", "link", "sync directory"]
    # Each directory that was made is synced into the one above: not yet, there, t.
    assert len(made) == 1 + 3
    events.clear()
    version = local.swap("t/m", b"one", None)
    local.swap("t/m", b"two", version.etag)
    assert events == ["sync file", "rename", "sync directory"] * 2
