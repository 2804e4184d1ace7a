"""Runs inside `unshare -Urm`: an archive on a tmpfs that fills up and turns read-only.

unshare -Urm python -m tests.archive.storage.on_small_disk SCENARIO DIRECTORY
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from laredo_archive.errors import (
    CommitUnavailable,
    CopyStopped,
    DestinationFull,
    DestinationReadOnly,
    DestinationUnavailable,
    NoRoomToFetch,
)
from laredo_archive.maintain.collect import collect
from laredo_archive.maintain.copy import Copied, copy
from laredo_archive.manifest.model import FormatEntry
from laredo_archive.read.fetched_diff import fetch
from laredo_archive.read.location import find, parse
from laredo_archive.storage.local import UNFINISHED, LocalDestination
from laredo_archive.write.table_archive import TableArchive
from laredo_model.position import Position
from tests.support.archive.archiving import (
    MANIFEST,
    ONE,
    PREFIX,
    TABLE,
    base_of,
    based,
    diffed,
    opened,
    rebased,
)
from tests.support.archive.truth import State

BIG: State = {b"%04d" % i: b'{"id":%d,"v":"%s"}' % (i, b"x" * 1000) for i in range(1500)}


def mount(directory: Path, size: str) -> None:
    directory.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)], check=True
    )


def remount(directory: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(directory)], check=True)


def refusal(call: Callable[[], object], kind: type[DestinationUnavailable]) -> str:
    """The message with which ``call`` is refused for now."""
    try:
        call()
    except CommitUnavailable as failure:
        assert isinstance(failure.__cause__, kind), repr(failure.__cause__)
        return str(failure)
    raise AssertionError("it wasn't refused")


def left_overs(directory: Path) -> list[Path]:
    return [path for path in directory.rglob(f"{UNFINISHED}*") if path.is_file()]


def archive_on(directory: Path) -> TableArchive:
    mount(directory, "1m")
    return based([LocalDestination(directory)])


def full_for_a_diff(directory: Path) -> None:
    """The diff waits; with room it is in, and the same."""
    archive = archive_on(directory)
    before = (directory / MANIFEST).read_bytes()
    message = refusal(lambda: diffed(archive, 10, 20, ONE, {**ONE, **BIG}), DestinationFull)
    assert str(directory) in message and "No space left" in message, message
    assert "free some, enlarge the volume" in message
    assert (directory / MANIFEST).read_bytes() == before
    assert left_overs(directory) == []
    assert archive.unfinished
    remount(directory, "size=8m")
    archive.settle()
    assert archive.head is not None and archive.head.position == 20


def full_for_the_manifest(directory: Path) -> None:
    """Every byte is used: not even the manifest can be written, and the old one stays whole."""
    archive = archive_on(directory)
    before = (directory / MANIFEST).read_bytes()
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    message = refusal(lambda: archive.see(Position(99)), DestinationFull)
    assert "manifest.json" in message, message
    assert (directory / MANIFEST).read_bytes() == before
    filler.unlink()
    archive.see(Position(99))


def full_for_a_copy(directory: Path) -> None:
    """Copied objects stay, no manifest names them, and with room the same copy resumes there."""
    source = directory.with_name("source")
    with opened([LocalDestination(source)]) as archive:
        rebased(archive, 10, BIG, continues=False)
        diffed(archive, 10, 20, BIG, {**BIG, **ONE})
    mount(directory, "1m")

    def copied() -> Copied:
        return copy(find(str(source / TABLE)), parse(str(directory / TABLE)))

    try:
        copied()
    except CopyStopped as stopped:
        assert isinstance(stopped.__cause__, DestinationFull), repr(stopped.__cause__)
        assert "No space left" in str(stopped) and "of 2 objects are in place" in str(stopped)
    else:
        raise AssertionError("it wasn't stopped")
    assert not (directory / MANIFEST).exists()
    assert left_overs(directory) == []
    remount(directory, "size=8m")
    assert copied().manifest.head == (1, 20)


def no_inodes(directory: Path) -> None:
    archive = archive_on(directory)
    remount(directory, "nr_inodes=8")
    refusal(lambda: base_of(archive, 10, ONE, formats=("jsonl", "protobuf")), DestinationFull)
    remount(directory, "nr_inodes=100")
    rebased(archive, 10, ONE, formats=("jsonl", "protobuf"))


def read_only_from_the_start(directory: Path) -> None:
    archive_on(directory)
    remount(directory, "ro")
    local = LocalDestination(directory)
    for use in (lambda: opened([local], "w2"), lambda: collect_litter(local)):
        try:
            use()
        except DestinationReadOnly as failure:
            assert "is read-only; mount it read-write" in str(failure)
        else:
            raise AssertionError("it wasn't refused")
    assert local.get(MANIFEST) is not None, "reading goes on"


def collect_litter(local: LocalDestination) -> None:
    from datetime import timedelta

    from laredo_archive.maintain.collect import Policy

    # The base is named; an orphan that is young enough isn't looked at: so let all be old.
    remount(Path(local.uri.removeprefix("file://")), "rw")
    upload = local.upload(f"{PREFIX}epoch=1/snapshot-0_63.jsonl")
    upload.finish()
    remount(Path(local.uri.removeprefix("file://")), "ro")
    collect(local, TABLE, key_prefix=PREFIX, policy=Policy(cut_off=timedelta(seconds=-1)))


def full_for_the_last_bytes_of_a_fetched_diff(directory: Path) -> None:
    """They are written when the temporary file is read from its start."""
    source = directory.with_name("source")
    based([LocalDestination(source)]).close()
    found, size = find(str(source / TABLE)), (1 << 20) + 4000
    (source / PREFIX / "large").write_bytes(b"x" * size)
    mount(directory, "1m")
    try:
        fetch(found, FormatEntry("", size, f"{PREFIX}large"), directory)
    except NoRoomToFetch as full:
        assert str(directory) in str(full) and "No space left" in str(full), full
    else:
        raise AssertionError("it had room")


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        full_for_a_diff,
        full_for_the_manifest,
        full_for_a_copy,
        full_for_the_last_bytes_of_a_fetched_diff,
        no_inodes,
        read_only_from_the_start,
    )
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](Path(sys.argv[2]))
