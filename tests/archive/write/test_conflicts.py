"""Manifest changes by others between our read and our swap, and their outcome.

The table that pyiceberg calls its conflict matrix: rows are what the other did,
columns what we were about to do.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from laredo_archive.errors import (
    ArtifactMissing,
    CommitStateUnknown,
    CommitUnavailable,
    DestinationUnavailable,
    Fenced,
    ManifestDamaged,
    ManifestLost,
    ManifestNewer,
    OutOfOrder,
)
from laredo_archive.maintain.collect import Policy, collect
from laredo_archive.manifest import rules
from laredo_archive.manifest.model import Artifact
from laredo_archive.write.table_archive import TableArchive
from laredo_model.position import Position
from tests.support.archive.archiving import (
    DAY,
    MANIFEST,
    ONE,
    THREE,
    TWO,
    NewStores,
    ScriptedDestination,
    base_of,
    diffed,
    environment,
    memory,
    opened,
    rebased,
)

Ours = Callable[[TableArchive], object]


def diff(archive: TableArchive) -> object:
    return diffed(archive, 20, 30, TWO, THREE)


def base(archive: TableArchive) -> object:
    return rebased(archive, 20, TWO)


def see(archive: TableArchive) -> object:
    archive.see(Position(99))
    return None


def notices(archive: TableArchive) -> object:
    assert archive.manifest is not None
    archive.notices.mark_notified("arn:sink", archive.manifest.artifacts[-1])
    archive.record_notices()
    return None


OURS: dict[str, Ours] = {"diff": diff, "base": base, "see": see, "notices": notices}


def _collector(destination: ScriptedDestination, cut_off: timedelta = DAY) -> list[str]:
    store, other = destination.store, destination.another()
    store.objects["public.t/epoch=1/snapshot-0_1.jsonl"] = (b"x", store.world.date - 2 * DAY)
    policy = Policy(cut_off, grace=DAY)
    done = collect(
        other, "public.t", key_prefix="public.t/", policy=policy, environment=environment(other)
    )
    return [orphan.key for orphan in done.orphans]


def _newer_writer(destination: ScriptedDestination) -> None:
    opened([destination.another()], "w2")


def _newer_writer_which_writes(destination: ScriptedDestination) -> None:
    archive = opened([destination.another()], "w2")
    diffed(archive, 20, 25, TWO, TWO)


def _deleter(destination: ScriptedDestination) -> None:
    del destination.store.objects[MANIFEST]


def _damager(destination: ScriptedDestination) -> None:
    destination.store.objects[MANIFEST] = (b"{", destination.store.world.date)


def _newer_program(destination: ScriptedDestination) -> None:
    data = destination.store.objects[MANIFEST][0]
    newer = data.replace(b'"manifest_version":1', b'"manifest_version":3')
    destination.store.objects[MANIFEST] = (newer, destination.store.world.date)


def _older_backup(destination: ScriptedDestination) -> None:
    data = destination.store.objects[MANIFEST][0].replace(b'"writer_id":"w1"', b'"writer_id":"w0"')
    destination.store.objects[MANIFEST] = (data, destination.store.world.date)


@pytest.fixture
def destination(new_stores: NewStores) -> ScriptedDestination:
    return new_stores()[0]


@pytest.fixture
def archive(destination: ScriptedDestination) -> Iterator[TableArchive]:
    with opened([destination], "w1", sinks=["arn:sink"]) as archive:
        rebased(archive, 10, ONE, continues=False)
        diffed(archive, 10, 20, ONE, TWO)
        yield archive


@pytest.mark.parametrize("ours", OURS)
def test_beside_a_collector_we_go_on(
    destination: ScriptedDestination, archive: TableArchive, ours: str
) -> None:
    destination.before_swap.append(lambda: _collector(destination))
    OURS[ours](archive)
    manifest = destination.manifest
    assert [entry.key for entry in manifest.retired] == ["public.t/epoch=1/snapshot-0_1.jsonl"]
    assert manifest.retired[0].at is not None, "our change found it undated, and dates it"
    assert manifest.writer_id == "w1"
    assert archive.counts.cas_conflicts == 1
    expected = {
        "diff": lambda: manifest.head_position == 30,
        "base": lambda: manifest.epoch == 2,
        "see": lambda: manifest.seen_position == 99,
        "notices": lambda: manifest.notified["arn:sink"] == manifest.head,
    }
    assert expected[ours]()


@pytest.mark.parametrize("ours", ["diff", "base"])
def test_a_collector_that_takes_what_we_are_about_to_name_gets_it(
    destination: ScriptedDestination, archive: TableArchive, ours: str
) -> None:
    taken: list[str] = []
    destination.before_swap.append(
        lambda: taken.extend(_collector(destination, timedelta(seconds=-1)))
    )
    OURS[ours](archive)
    manifest = destination.manifest
    assert len(taken) == 2
    assert manifest.retired_keys() == set(taken)
    assert manifest.artifacts[-1].keys[0].endswith("-w1-1.jsonl")


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("theirs", [_newer_writer, _newer_writer_which_writes])
def test_against_a_newer_writer_we_are_out_for_good(
    destination: ScriptedDestination,
    archive: TableArchive,
    ours: str,
    theirs: Callable[[ScriptedDestination], None],
) -> None:
    destination.before_swap.append(lambda: theirs(destination))
    with pytest.raises(Fenced, match=r"writer w2 \(term 2\) has taken over from this one, w1"):
        OURS[ours](archive)
    before = dict(destination.store.objects)
    for again in OURS.values():
        with pytest.raises(Fenced, match="w2"):
            again(archive)
    assert destination.manifest.writer_id == "w2"
    assert before[MANIFEST] == destination.store.objects[MANIFEST]


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize(
    ("theirs", "failure"),
    [
        (_deleter, ManifestLost),
        (_damager, ManifestDamaged),
        (_newer_program, ManifestNewer),
        (_older_backup, Fenced),
    ],
)
def test_against_foul_play_nothing_is_overwritten(
    destination: ScriptedDestination,
    archive: TableArchive,
    ours: str,
    theirs: Callable[[ScriptedDestination], None],
    failure: type[Exception],
) -> None:
    destination.before_swap.append(lambda: theirs(destination))
    with pytest.raises(failure):
        OURS[ours](archive)
    after = destination.store.objects.get(MANIFEST)
    with pytest.raises(failure):
        OURS[ours](archive)
    assert destination.store.objects.get(MANIFEST) == after


@pytest.mark.parametrize("ours", OURS)
def test_a_lost_answer_is_settled_by_reading(
    destination: ScriptedDestination, archive: TableArchive, ours: str
) -> None:
    destination.answers_lost = 1
    swaps = len(destination.requests)
    revision = destination.manifest.revision
    OURS[ours](archive)
    assert destination.manifest.revision == revision + 1, "it was in, so it wasn't done again"
    swaps = [what for what, _ in destination.requests[swaps:]].count("swap")
    assert swaps == 1


@pytest.mark.parametrize("ours", OURS)
def test_reading_settles_only_yes(
    destination: ScriptedDestination, archive: TableArchive, ours: str
) -> None:
    """Ours isn't in, and the manifest is still ours: it is offered again."""

    def away() -> None:
        raise DestinationUnavailable(destination.uri, "away")

    def lost() -> None:
        raise CommitStateUnknown(destination.uri, "time-out")

    revision = destination.manifest.revision
    destination.before_swap += [lost, lost, away]
    with pytest.raises(CommitUnavailable, match="away"):
        OURS[ours](archive)
    assert destination.manifest.revision == revision
    OURS[ours](archive)
    assert destination.manifest.revision == revision + 1


@pytest.mark.parametrize("ours", ["diff", "base"])
def test_a_late_swap_of_a_dropped_commit_is_not_written_over(ours: str) -> None:
    """The base's object was deleted, by nobody of ours, after its swap was sent."""
    (destination,) = memory()
    store = destination.store
    archive = opened([destination])
    rebased(archive, 10, ONE, continues=False)
    diffed(archive, 10, 20, ONE, TWO)
    gone = base_of(archive, 20, TWO)

    def lost_and_late() -> None:
        del store.objects[gone.keys[destination.location, "jsonl"]]
        store.faults.late = 1.0

    destination.before_swap.append(lost_and_late)
    with pytest.raises(ArtifactMissing):
        archive.commit_base(gone, continues=True)
    store.faults.late = 0.0
    (late,) = store.world._later
    late[-1]()
    assert destination.manifest.epoch == 2

    def commit(archive: TableArchive) -> Artifact:
        if ours == "diff":
            return diffed(archive, 20, 30, TWO, THREE)
        return rebased(archive, 30, THREE, continues=False)

    with pytest.raises(OutOfOrder, match=r"ends at 0/14 of epoch 2 now.* open the archive again"):
        commit(archive)
    assert not archive.unfinished
    again = opened([destination.another()], "w2")
    assert commit(again).epoch == {"diff": 2, "base": 3}[ours]
    assert list(rules.check(destination.manifest)) == []
