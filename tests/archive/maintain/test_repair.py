"""Repairs: what one destination lost or damaged comes from another; nothing else is touched."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from laredo_archive.errors import DestinationUnavailable, OfTheOriginal, RepairRefused
from laredo_archive.maintain.repair import RepairReport, repair
from laredo_archive.maintain.verify import verify
from laredo_archive.manifest.model import FormatEntry
from laredo_archive.read import location
from laredo_archive.read.location import FoundArchive
from laredo_archive.reader import Archive
from laredo_archive.storage.destination import Destination
from laredo_archive.storage.local import LocalDestination
from laredo_archive.write.table_archive import TableArchive
from tests.support.archive.archiving import (
    EMPTY,
    ONE,
    PREFIX,
    TABLE,
    THREE,
    TWO,
    anybodys,
    diffed,
    opened,
    rebased,
)
from tests.support.archive.building import Builder, row, state
from tests.support.archive.forked_child import in_child
from tests.support.archive.objects import put, read

FORMATS = ("jsonl", "protobuf")
LAST, BASE = -1, 0
Damage = Callable[[Destination, str], None]
NewDestination = Callable[[], Destination]


def overwrite(destination: Destination, key: str, data: bytes) -> None:
    """``data`` instead of what is there, as another program would."""
    destination.delete(key)
    put(destination, key, data)


def deleted(destination: Destination, key: str) -> None:
    destination.delete(key)


def truncated(destination: Destination, key: str) -> None:
    overwrite(destination, key, read(destination, key)[:-7])


def flipped(destination: Destination, key: str) -> None:
    data = bytearray(read(destination, key))
    data[len(data) // 2] ^= 0x10
    overwrite(destination, key, bytes(data))


def grown(destinations: list[Destination]) -> TableArchive:
    """Two epochs, on all destinations."""
    archive = opened(destinations)
    rebased(archive, 10, ONE, continues=False, formats=FORMATS)
    diffed(archive, 10, 20, ONE, TWO, formats=FORMATS)
    rebased(archive, 20, TWO, formats=FORMATS)
    diffed(archive, 20, 30, TWO, THREE, formats=FORMATS)
    return archive


def found_at(destination: Destination) -> FoundArchive:
    return Archive.open(destination, PREFIX).found


def entry_of(destination: Destination, artifact: int) -> FormatEntry:
    return found_at(destination).manifest.artifacts[artifact].formats["jsonl"]


def objects(destination: Destination) -> dict[str, bytes]:
    return {info.key: read(destination, info.key) for info in destination.list("")}


def repaired(target: Destination, *others: Destination, **more: object) -> RepairReport:
    return repair(found_at(target), [found_at(other) for other in others], **more)  # type: ignore[arg-type]


def problems(destination: Destination) -> list[str]:
    return verify(Archive.open(destination, PREFIX)).problems


@pytest.fixture
def two(new_destination: NewDestination) -> list[Destination]:
    """Two destinations of the same archive; its writer is gone."""
    both = [new_destination(), new_destination()]
    grown(both).close()
    return both


@pytest.mark.parametrize("damage", [deleted, truncated, flipped])
@pytest.mark.parametrize("artifact", [BASE, LAST])
def test_what_one_lost_comes_from_the_other(
    two: list[Destination], damage: Damage, artifact: int
) -> None:
    hurt, whole = two
    entry = entry_of(hurt, artifact)
    damage(hurt, entry.key)
    assert problems(hurt) != []
    before, others = objects(hurt), objects(whole)
    (would,) = repaired(hurt, whole, dry_run=True).repaired
    assert (objects(hurt), objects(whole)) == (before, others)
    report = repaired(hurt, whole)
    assert (report.objects, len(report.repaired), report.lost) == (8, 1, [])
    assert problems(hurt) == []
    now = entry_of(hurt, artifact)
    (done,) = report.repaired
    assert would == done._replace(uri=None)
    assert entry.key in done.reason
    assert done.uri == now.uri == hurt.uri_of(now.key)
    assert done.origin == whole.uri_of(entry.key)
    assert read(hurt, now.key) == others[entry.key]
    after = objects(hurt)
    assert objects(whole) == others
    kept = before.keys() - {f"{PREFIX}manifest.json"}
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}
    if damage is deleted:
        assert now == entry
        assert after.keys() - before.keys() == {entry.key}
        assert after[f"{PREFIX}manifest.json"] == before[f"{PREFIX}manifest.json"]
    else:
        assert now == replace(entry, key=now.key, uri=now.uri)
        assert after.keys() - before.keys() == {now.key}
        assert found_at(hurt).manifest.retired_keys() == {entry.key}
    assert repaired(hurt, whole).repaired == []


@pytest.mark.parametrize("damage", [deleted, truncated, flipped])
@pytest.mark.parametrize("dry_run", [True, False])
def test_what_both_lost_is_named_with_what_to_do(
    two: list[Destination], damage: Damage, dry_run: bool
) -> None:
    lost, other = entry_of(two[0], LAST), entry_of(two[0], BASE)
    damage(two[0], lost.key)
    damage(two[0], other.key)
    flipped(two[1], lost.key)
    before = [objects(each) for each in two]
    report = repaired(*two, dry_run=dry_run)
    (told,) = map(str, report.lost)
    assert told.startswith("diff 0/14..0/1E of epoch 2 (jsonl) is lost: ")
    assert two[0].uri_of(lost.key) in told
    assert f"{two[1].uri_of(lost.key)}: its sha256 is" in told
    assert "Restore the object from a backup" in told
    assert "POST /snapshot" in told
    assert len(report.repaired) == 1, "the other object is restored all the same"
    assert objects(two[1]) == before[1]
    after = objects(two[0])
    assert after.get(lost.key) == before[0].get(lost.key)


def test_the_third_has_what_the_second_lost_too(new_destination: NewDestination) -> None:
    three = [new_destination() for _ in range(3)]
    grown(three).close()
    key = entry_of(three[0], LAST).key
    deleted(three[0], key)
    truncated(three[1], key)
    report = repaired(*three)
    assert [done.origin for done in report.repaired] == [three[2].uri_of(key)]
    assert problems(three[0]) == []


FORMER = 1
"""A diff of the first epoch, which the second one's base takes the place of."""


@pytest.mark.parametrize("damage", [deleted, truncated, flipped])
@pytest.mark.parametrize("artifact", [0, FORMER])
def test_what_a_later_base_replaces_is_gone_and_no_problem_any_more(
    new_destination: NewDestination, damage: Damage, artifact: int
) -> None:
    only = new_destination()
    grown([only]).close()
    damage(only, entry_of(only, artifact).key)
    assert problems(only) != [], "nobody has looked at it yet"
    report = repaired(only)
    (gone,) = map(str, report.gone)
    assert "epoch 1 (jsonl) is lost: " in gone
    assert report.lost == []
    proven = verify(Archive.open(only, PREFIX))
    assert proven.problems == []
    first = ("0/A", "0/14")[artifact]
    assert any(f"boundaries from {first} to 0/14 are gone" in each for each in proven.remarks)
    assert proven.boundaries == 2 + artifact
    before = objects(only)
    assert repaired(only).gone != []
    assert objects(only) == before, "it is marked once"


def test_what_was_gone_and_is_put_back_is_checked_again(new_destination: NewDestination) -> None:
    only = new_destination()
    grown([only]).close()
    key = entry_of(only, FORMER).key
    data = read(only, key)
    deleted(only, key)
    assert repaired(only).gone != []
    put(only, key, data)
    assert repaired(only).gone == []
    assert not entry_of(only, FORMER).lost
    assert verify(Archive.open(only, PREFIX)).remarks == []
    flipped(only, key)
    assert problems(only) != []


def test_what_was_gone_and_comes_from_another_is_lost_no_more(two: list[Destination]) -> None:
    flipped(two[0], entry_of(two[0], FORMER).key)
    assert repaired(two[0]).gone != []
    assert entry_of(two[0], FORMER).lost
    report = repaired(two[0], two[1])
    assert (len(report.repaired), report.gone) == (1, [])
    assert not entry_of(two[0], FORMER).lost
    assert problems(two[0]) == []


def test_what_the_newest_epoch_needs_is_lost_all_the_same(new_destination: NewDestination) -> None:
    only = new_destination()
    grown([only]).close()
    for artifact in (FORMER, 2):
        deleted(only, entry_of(only, artifact).key)
    before = objects(only)
    report = repaired(only)
    assert len(report.lost) == 2, "the only later base is lost, too"
    assert all(
        "no other destination of this archive is known" in each for each in map(str, report.lost)
    )
    assert report.gone == []
    assert objects(only) == before
    assert problems(only) != []


def test_a_writer_at_work_goes_on_with_what_was_repaired(new_destination: NewDestination) -> None:
    both = [new_destination(), new_destination()]
    with grown(both) as archive:
        flipped(both[0], entry_of(both[0], LAST).key)
        deleted(both[1], entry_of(both[1], BASE).key)
        assert len(repaired(*both).repaired) == 1
        assert len(repaired(both[1], both[0]).repaired) == 1
        diffed(archive, 30, 40, THREE, EMPTY, formats=FORMATS)
        rebased(archive, 40, EMPTY, formats=FORMATS)
    with opened(both, "w2") as again:
        diffed(again, 40, 50, EMPTY, ONE, formats=FORMATS)
    assert [problems(each) for each in both] == [[], []]


def test_what_leaves_the_manifest_meanwhile_is_not_restored(tmp_path: Path) -> None:
    both: list[Destination] = [LocalDestination(tmp_path / name) for name in "ab"]
    with opened(both, keep_epochs=1) as archive:
        rebased(archive, 10, ONE, continues=False)
        diffed(archive, 10, 20, ONE, TWO)
        deleted(both[0], entry_of(both[0], BASE).key)
        seen = [found_at(each) for each in both]
        rebased(archive, 20, TWO)
        before = objects(both[0])
        report = repair(seen[0], seen[1:])
        assert (report.repaired, report.lost) == ([], [])
        assert objects(both[0]) == before


def test_few_bytes_are_read_and_all_sizes_compared(two: list[Destination]) -> None:
    sizes = [entry.size_bytes for entry in found_at(two[0]).manifest.named()]
    newest, oldest = entry_of(two[0], LAST), entry_of(two[0], BASE)
    report = repaired(*two, sums_bytes=sum(sizes))
    assert (report.read, report.objects) == (8, 8)
    deleted(two[0], oldest.key)
    truncated(two[0], entry_of(two[0], 1).key)
    flipped(two[0], newest.key)
    report = repaired(*two, sums_bytes=0)
    assert (report.read, len(report.repaired)) == (0, 2), "those of another size"
    report = repaired(*two, sums_bytes=newest.size_bytes)
    assert (report.read, len(report.repaired)) == (0, 1), "the newest is read first"
    assert problems(two[0]) == []


def test_a_destination_that_cannot_be_read_is_not_one_that_lost_something(tmp_path: Path) -> None:
    both: list[Destination] = [LocalDestination(tmp_path / name) for name in "ab"]
    grown(both).close()
    file = tmp_path / "a" / entry_of(both[0], LAST).key
    data = file.read_bytes()
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DestinationUnavailable, match="symbolic link"):
        repaired(*both)
    file.unlink()
    file.write_bytes(data)
    assert problems(both[0]) == []


def test_what_cannot_be_repaired_from_is_refused(tmp_path: Path) -> None:
    both: list[Destination] = [LocalDestination(tmp_path / name) for name in "ab"]
    grown(both).close()
    users = Builder(tmp_path / "users").base(100, state(row(1, "Ada"))).write()
    with pytest.raises(RepairRefused, match=r"the archive of public\.users, not of public\.t"):
        repair(found_at(both[0]), [location.find(str(users))])
    with pytest.raises(RepairRefused, match="name another one"):
        repaired(both[0], both[0])
    moved = (tmp_path / "b" / TABLE).rename(tmp_path / "moved")
    with pytest.raises(RepairRefused, match="was the archive moved"):
        repair(location.find(str(moved)), [found_at(both[0])])
    deleted(both[0], entry_of(both[0], LAST).key)
    report = repair(found_at(both[0]), [location.find(str(moved))])
    assert len(report.repaired) == 1, "a moved copy is as good to read from"
    assert problems(both[0]) == []
    original = Path(__file__).parents[2] / "golden" / "archives" / "original"
    with pytest.raises(OfTheOriginal):
        repair(location.find(str(original)), [])


def test_killed_at_every_step_and_begun_again(tmp_path: Path) -> None:
    for damage in (deleted, flipped):
        for point in range(1, 100):
            place = tmp_path / f"{damage.__name__} {point}"
            both: list[Destination] = [LocalDestination(place / name) for name in "ab"]
            grown(both).close()
            key = entry_of(both[0], LAST).key
            damage(both[0], key)
            before = objects(both[1])

            def in_one_go(both: list[Destination] = both) -> None:
                repaired(*both)

            status = in_child(in_one_go, point)
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            assert killed or status == 0
            repaired(*both)
            assert problems(both[0]) == []
            assert objects(both[1]) == before
            both[0].collect_unfinished("", timedelta(seconds=-1), anybodys)
            if not killed:
                break
        assert point > 5, "points of a repair"


def test_many_lost_objects_are_reported_with_few_reads_of_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = LocalDestination(tmp_path)
    archive = grown([destination])
    for start in range(30, 60, 10):
        diffed(archive, start, start + 10, THREE, THREE, formats=FORMATS)
    found = found_at(destination)
    for key in [entry.key for entry in found.manifest.named()]:
        destination.delete(key)
    reads, get = list[str](), LocalDestination.get
    monkeypatch.setattr(
        LocalDestination, "get", lambda place, key: reads.append(key) or get(place, key)
    )
    assert len(repair(found, []).lost) == 14
    assert reads.count(found.manifest_key) <= 3
