"""Rules of a directory as a destination: durability, locks, errors, hidden files."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from laredo_archive import failpoint
from laredo_archive.cli import main
from laredo_archive.errors import (
    ArchiveError,
    CommitStateUnknown,
    DestinationDenied,
    DestinationUnavailable,
    ExportRefused,
    NotAFile,
)
from laredo_archive.maintain.collect import collect
from laredo_archive.maintain.copy import copy
from laredo_archive.maintain.export import export
from laredo_archive.maintain.verify import verify
from laredo_archive.read import location
from laredo_archive.reader import Archive
from laredo_archive.storage.local import UNFINISHED, LocalDestination
from tests.support.archive.archiving import (
    AT_ONCE,
    ONE,
    PREFIX,
    TABLE,
    TWO,
    anybodys,
    diffed,
    opened,
    rebased,
)
from tests.support.archive.objects import put, read


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "not yet" / "there"


@pytest.fixture
def local(directory: Path) -> LocalDestination:
    return LocalDestination(directory)


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


# A directory that others may write to: links lead nowhere, and only regular files are objects.


KEY = f"{PREFIX}epoch=1/snapshot-0_A.jsonl"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "archives"
    with opened([LocalDestination(root)]) as archive:
        rebased(archive, 10, ONE, continues=False)
        diffed(archive, 10, 20, ONE, TWO)
    return root


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory of somebody else's, with a file named as an artifact is."""
    place = tmp_path / "outside"
    place.mkdir()
    (place / "snapshot-0_1.jsonl").write_text("theirs")
    (place / "manifest.json").write_text("theirs")
    return place


def _symlink(path: Path) -> None:
    other = path.parent.parent.parent.parent / "elsewhere"
    path.rename(other)
    path.symlink_to(other)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as made:
        previous = Path.cwd()
        os.chdir(path.parent)  # a socket's path has few characters
        try:
            made.bind(path.name)
        finally:
            os.chdir(previous)


NO_FILES: list[Callable[[Path], None]] = [_symlink, _fifo, _device, _directory, _socket]


@pytest.mark.parametrize("replaced", NO_FILES)
def test_what_is_no_regular_file_is_told_and_not_read(
    root: Path, tmp_path: Path, replaced: Callable[[Path], None]
) -> None:
    replaced(root / KEY)
    archive = Archive.at(f"{root}/{PREFIX}")
    report = verify(archive)
    assert any("regular files" in problem or "Is a dir" in problem for problem in report.problems)
    with pytest.raises(ArchiveError, match=r"only regular files|Is a directory"):
        list(archive.rows(archive.boundary()))
    with pytest.raises(ArchiveError, match=r"only regular files|Is a directory"):
        copy(location.find(f"{root}/{PREFIX}"), location.parse(f"{tmp_path}/copy/{PREFIX}"))


@pytest.mark.parametrize("replaced", NO_FILES)
def test_a_manifest_that_is_no_regular_file_is_told(
    root: Path, replaced: Callable[[Path], None]
) -> None:
    replaced(root / PREFIX / "manifest.json")
    for command in (["ls"], ["verify"], ["gc", "--dry-run"], ["cat"]):
        result = CliRunner().invoke(main, [*command, f"{root}/{PREFIX}"])
        assert result.exit_code == 1
        assert "only regular files are" in result.output
    with pytest.raises(NotAFile):
        opened([LocalDestination(root)], "w2")


def test_a_linked_directory_is_neither_read_written_nor_emptied(root: Path, outside: Path) -> None:
    local = LocalDestination(root)
    (root / PREFIX / "epoch=2").symlink_to(outside)
    key = f"{PREFIX}epoch=2/snapshot-0_1.jsonl"
    before = {path.name: path.read_bytes() for path in outside.iterdir()}
    assert key not in {info.key for info in local.list("")}
    for attempt in (
        lambda: local.get(key),
        lambda: local.head(key),
        lambda: local.open(key),
        lambda: local.upload(key),
        lambda: local.upload(f"{PREFIX}epoch=2/new"),
        lambda: local.delete(key),
        lambda: local.swap(f"{PREFIX}epoch=2/manifest.json", b"x", None),
    ):
        with pytest.raises(NotAFile, match=r"epoch=2: it is a symbolic link"):
            attempt()
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == before


def test_the_collector_follows_no_link(root: Path, outside: Path) -> None:
    """Neither when it lists, nor when a manifest sends it there, nor for left-overs."""
    left_over = outside / ".unfinished-snapshot-0_1.jsonl-0123456789abcdef"
    left_over.write_text("theirs")
    before = {path.name: path.read_bytes() for path in outside.iterdir()}
    local = LocalDestination(root)
    for key in (f"{PREFIX}epoch=2/snapshot-0_1.jsonl", f"{PREFIX}epoch=3/snapshot-0_1.jsonl"):
        put(local, key, b"ours")
    for _ in range(2):  # entered, dated
        collect(local, TABLE, key_prefix=PREFIX, policy=replace(AT_ONCE, grace=timedelta(days=1)))
    (root / PREFIX / "epoch=2/snapshot-0_1.jsonl").unlink()
    (root / PREFIX / "epoch=2").rmdir()
    (root / PREFIX / "epoch=2").symlink_to(outside)
    done = collect(local, TABLE, key_prefix=PREFIX, policy=AT_ONCE)
    assert done.deleted == [f"{PREFIX}epoch=3/snapshot-0_1.jsonl"]
    assert done.unfinished == 0
    assert local.collect_unfinished("", timedelta(seconds=-1), anybodys) == 0
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == before


def test_a_linked_object_is_neither_deleted_nor_adopted(root: Path, outside: Path) -> None:
    local = LocalDestination(root)
    link = root / PREFIX / "epoch=1/snapshot-0_1.jsonl"
    link.symlink_to(outside / "snapshot-0_1.jsonl")
    with pytest.raises(NotAFile):
        local.delete(f"{PREFIX}epoch=1/snapshot-0_1.jsonl")
    assert link.is_symlink()
    assert local.collect_unfinished("", timedelta(seconds=-1), anybodys) == 0


def test_a_lock_that_is_a_link_is_not_opened(root: Path, tmp_path: Path) -> None:
    lock = root / PREFIX / ".manifest.json.lock"
    lock.unlink()
    lock.symlink_to(tmp_path / "made elsewhere")
    with pytest.raises(ArchiveError):
        opened([LocalDestination(root)], "w2")
    assert not (tmp_path / "made elsewhere").exists()


def test_the_roots_own_path_may_lead_over_links(root: Path, tmp_path: Path) -> None:
    """It is what the operator configured."""
    (tmp_path / "link").symlink_to(root)
    with opened([LocalDestination(tmp_path / "link")], "w2") as archive:
        diffed(archive, 20, 30, TWO, ONE)
    assert verify(Archive.at(f"{tmp_path}/link/{PREFIX}")).sound
    (tmp_path / "table").symlink_to(root / PREFIX)
    assert verify(Archive.at(f"{tmp_path}/table")).sound


def test_an_object_without_an_end_isnt_read_to_it(root: Path, tmp_path: Path) -> None:
    """A sparse file of a petabyte takes no room and would take days."""
    os.truncate(root / KEY, 1 << 43)
    archive = Archive.at(f"{root}/{PREFIX}")
    [problem, *_] = verify(archive).problems
    assert "it has more than" in problem
    with pytest.raises(ArchiveError, match="it has more than"):
        copy(location.find(f"{root}/{PREFIX}"), location.parse(f"{tmp_path}/copy/{PREFIX}"))


@pytest.mark.parametrize("force", [False, True])
def test_an_export_replaces_no_link_and_no_fifo(root: Path, tmp_path: Path, force: bool) -> None:
    archive = Archive.at(f"{root}/{PREFIX}")
    victim = tmp_path / "victim.jsonl"
    victim.write_text("theirs")
    link, dangling, fifo = (tmp_path / f"{name}.jsonl" for name in ("link", "dangling", "fifo"))
    link.symlink_to(victim)
    dangling.symlink_to(tmp_path / "nowhere")
    os.mkfifo(fifo)
    for target in (link, dangling, fifo):
        with pytest.raises(ExportRefused):
            export(archive, archive.boundary(), target, "jsonl", replace=force)
    assert victim.read_text() == "theirs"
    assert link.is_symlink() and dangling.is_symlink() and fifo.is_fifo()
