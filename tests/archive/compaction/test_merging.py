"""Diffs are merged level by level; every boundary is still there, and the table at it."""

import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from laredo_archive.errors import CommitUnavailable, DestinationUnavailable, OutOfOrder
from laredo_archive.maintain.compare_postgres import Comparison, Measured, decide
from laredo_archive.manifest import merged, rules
from laredo_archive.manifest.model import Artifact
from laredo_archive.reader import Archive
from laredo_archive.write.manifest_store import ManifestStore
from laredo_model.line import Change
from laredo_model.position import Position
from tests.support import drawn
from tests.support.archive.archiving import (
    HISTORY,
    MANIFEST,
    OTHER_HISTORY,
    PREFIX,
    NewStores,
    ScriptedDestination,
    base_of,
    memory,
    opened,
    rebased,
)
from tests.support.archive.long_archive import FIRST, LEVELS, LongArchive, compacted, rows_at
from tests.support.archive.truth import State, checksum_of


def chain_of(manifest: object) -> list[tuple[int | None, int]]:
    return [(a.from_position, a.to_position) for a in manifest.artifacts]  # type: ignore[attr-defined]


def applied(state: State, changes: Iterable[Change]) -> State:
    """The rows after changes, each of which must fit what was before it."""
    state = dict(state)
    for change in changes:
        assert state.pop(change.key, None) == change.old
        if change.new is not None:
            state[change.key] = change.new
    return state


def depth_of(artifact: Artifact) -> int:
    if artifact.parts is None:
        return 0
    return 1 + max((depth_of(part) for part in artifact.parts.diffs), default=0)


@pytest.mark.parametrize("truncating", drawn.first(1, [0.1, 0.0]))
def test_every_boundary_is_still_there(new_stores: NewStores, truncating: float) -> None:
    destinations = new_stores(2)
    long = LongArchive.begun(opened(destinations))
    for _ in range(12):
        long.grow(7, truncating=truncating)
        long.compacted()
    for destination in destinations:
        manifest = destination.manifest
        assert list(rules.check(manifest)) == []
        assert len(manifest.artifacts) < 20, chain_of(manifest)
        assert max(map(depth_of, manifest.artifacts)) > 1
        for position, state in long.states.items():
            assert rows_at(destination, position) == state
            assert rows_at(destination, long.times[position]) == state


def test_a_reader_of_the_head_needs_a_few_diffs(destination: ScriptedDestination) -> None:
    compacted(LongArchive(opened([destination])), rounds=24)
    boundary = Archive.open(destination, PREFIX).boundary()
    assert len(boundary.diffs) <= 3 + 2 + 4 + 4  # 20 s of 5, a minute of 20, 5 minutes, 20 in all


def test_periods_that_are_not_over_stay(destination: ScriptedDestination) -> None:
    long = LongArchive.begun(opened([destination]))
    long.grow(4)  # ends at 5, 10, 15 and 20 s; the last shows that the first period is over
    assert long.compacted() == 1
    assert chain_of(destination.manifest) == [(None, 10), (10, 40), (40, 50)]
    assert long.compacted() == 0


def test_changes_between_two_boundaries_inside(destination: ScriptedDestination) -> None:
    long = LongArchive.begun(opened([destination]), seed=3)
    long.grow(70)
    long.compacted()
    archive = Archive.open(destination, PREFIX)
    start, end = archive.boundary(Position(60)), archive.boundary(Position(610))
    truncated, changes = archive.changes(start, end)
    assert applied({} if truncated else long.states[60], changes) == long.states[610]


def test_a_table_measured_across_the_end_of_a_merged_diff(
    destination: ScriptedDestination,
) -> None:
    long = LongArchive.begun(opened([destination]))
    long.grow(12)
    assert long.compacted() > 0
    merged_diff = destination.manifest.artifacts[1]
    start, end = merged_diff.from_position, merged_diff.to_position
    assert merged_diff.parts is not None and start is not None
    others = [long.states[position] for position in (start, end, end + 10)]
    inside = next(at for at in range(start + 10, end, 10) if long.states[at] not in others)
    state = checksum_of(long.states[inside])
    measured = Measured(Position(start + 5), Position(end + 5), state.rows, state.hex())
    verdict = decide(Archive.open(destination, PREFIX), measured)
    assert verdict is not None
    assert verdict.outcome is Comparison.EQUAL


def test_a_base_at_a_boundary_that_was_merged_meanwhile() -> None:
    destinations = memory(2)
    long = LongArchive.begun(opened(destinations))
    long.grow(30)
    assert long.compacted() > 0
    assert all(a.to_position != 60 for a in destinations[0].manifest.artifacts)
    rebased(long.archive, 60, long.states[60])
    for destination in destinations:
        manifest = destination.manifest
        assert list(rules.check(manifest)) == []
        assert [a.to_position for a in manifest.artifacts if a.epoch == 1][-1] == 60
        for position, state in long.states.items():
            assert rows_at(destination, position) == state
    long.grow(10)
    long.compacted()
    assert rows_at(destinations[1], long.head) == long.states[long.head]


def test_diffs_that_a_sink_was_not_notified_of_stay(destination: ScriptedDestination) -> None:
    archive = opened([destination], sinks=["arn:sink"])
    long = LongArchive.begun(archive)
    long.grow(30)
    assert long.compacted() == 0
    manifest = archive.manifest
    assert manifest is not None
    for artifact in archive.notices.outstanding("arn:sink", manifest)[:20]:
        archive.notices.mark_notified("arn:sink", artifact)
    assert long.compacted() > 0
    left = archive.notices.outstanding("arn:sink", archive.manifest)
    assert [artifact.to_position for artifact in left] == list(range(FIRST + 200, FIRST + 310, 10))


def test_a_period_is_merged_once_however_slowly_a_sink_is_notified(
    destination: ScriptedDestination,
) -> None:
    archive = opened([destination], sinks=["arn:sink"])
    long = LongArchive.begun(archive)
    long.grow(30)
    merges = 0
    manifest = archive.manifest
    assert manifest is not None
    for artifact in archive.notices.outstanding("arn:sink", manifest):
        archive.notices.mark_notified("arn:sink", artifact)
        merges += long.compacted([timedelta(seconds=60)])
    assert merges == 2
    assert max(map(depth_of, destination.manifest.artifacts)) == 1


def test_parts_are_dropped_after_a_while() -> None:
    destinations = memory(2)
    long = LongArchive.begun(opened(destinations))
    long.grow(22)
    early = dict(destinations[1].store.objects)
    long.grow(18)
    long.compacted()
    before = destinations[0].manifest
    world = destinations[0].store.world
    world.now += 7200
    long.grow(20)
    long.archive.merging.drop_parts(timedelta(seconds=3600))
    for destination in destinations:
        manifest = destination.manifest
        assert list(rules.check(manifest)) == []
        old = [a for a in manifest.artifacts if a.same_as(before.artifacts[1])]
        assert [a.parts for a in old] == [None]
        gone = {entry.key for entry in before.artifacts[1].objects()} - set(old[0].keys)
        assert gone
        assert gone <= manifest.retired_keys()
        assert rows_at(destination, old[0].to_position) == long.states[old[0].to_position]
    destinations[1].store.objects = early
    opened(destinations, "w2")
    assert rows_at(destinations[1], long.head) == long.states[long.head]


def test_the_boundary_of_a_base_that_is_being_written_stays() -> None:
    destinations = memory(2)
    long = LongArchive.begun(opened(destinations))
    long.grow(30)
    base = base_of(long.archive, 60, long.states[60])
    assert long.compacted() > 0
    destinations[0].store.world.now += 7200
    long.grow(20)
    long.archive.merging.drop_parts(timedelta(seconds=3600))
    long.archive.commit_base(base, continues=True)
    assert rows_at(destinations[1], Position(60)) == long.states[60]


def test_a_merge_that_cant_be_uploaded_holds_up_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    [destination] = memory()
    long = LongArchive.begun(opened([destination]))
    long.grow(8)
    change = destination._change

    def full(key: str, *given: Any, **more: Any) -> None:
        if "diff-0_A-0_28" in key:
            raise DestinationUnavailable(destination.uri_of(key), "no space left")
        change(key, *given, **more)

    monkeypatch.setattr(destination, "_change", full)
    with pytest.raises(CommitUnavailable, match="no space left"):
        long.compacted()
    long.grow(1)
    assert rows_at(destination, long.head) == long.states[long.head]
    monkeypatch.undo()
    assert long.compacted() > 0


def test_a_merge_reads_manifests_in_its_turn_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    long = LongArchive.begun(opened(memory()))
    long.grow(8)
    turn, current = long.archive.merging._commits._turn, ManifestStore.current

    def owned(store: ManifestStore) -> Any:
        assert turn._is_owned()  # type: ignore[attr-defined]
        return current(store)

    monkeypatch.setattr(ManifestStore, "current", owned)
    assert long.compacted() > 0


def test_the_levels_are_lengths_of_time(destination: ScriptedDestination) -> None:
    long = LongArchive.begun(opened([destination]))
    long.grow(40, seconds=30)
    long.compacted(LEVELS[1:])
    windows = [a.to_position - a.from_position for a in destination.manifest.artifacts[1:]]
    assert max(windows) == 100  # 5 minutes of 30 seconds each


def version_of(destination: ScriptedDestination) -> int:
    return json.loads(destination.store.objects[MANIFEST][0])["manifest_version"]


def test_only_parts_raise_the_manifest_s_version(destination: ScriptedDestination) -> None:
    long = LongArchive.begun(opened([destination]))
    long.grow(20)
    assert version_of(destination) == 1
    long.compacted()
    assert version_of(destination) == 2
    destination.store.world.now += 7200
    long.grow(1)
    long.archive.merging.drop_parts(timedelta(seconds=3600))
    assert version_of(destination) == 1
    assert any(a.to_position - a.from_position > 10 for a in destination.manifest.artifacts[1:])


def test_a_run_whose_epoch_left_while_it_was_merged(
    destination: ScriptedDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = LongArchive.begun(opened([destination], keep_epochs=1))
    long.grow(20)
    run = long.archive.merging.next_run(LEVELS)
    assert run is not None
    rebased(long.archive, long.head, long.states[long.head])
    before = destination.manifest
    monkeypatch.setattr(long.archive.merging, "next_run", lambda _: run)
    assert long.compacted() == 0
    assert destination.manifest == before
    assert not long.archive.unfinished


def test_lists_that_were_loaded_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged, "LISTED_AT_MOST", 1)
    monkeypatch.setattr(merged, "REMEMBERED", 2)
    [destination] = memory()
    long = LongArchive.begun(opened([destination]))
    long.grow(70)
    long.compacted()
    parts = merged.PartsFiles(destination, str, PREFIX)
    whole = merged.unfolded(destination.manifest, merged.everywhere, parts.diffs_of)
    assert [a.to_position for a in whole.artifacts] == sorted(long.states)
    assert len(parts._loaded) == 2


def test_an_epoch_goes_on_over_a_failover(destination: ScriptedDestination) -> None:
    """Diffs of two histories aren't merged, and a base before the switch takes over both."""
    archive = opened([destination])
    long = LongArchive.begun(archive)
    long.grow(5)
    early = long.head
    long.grow(5)
    last = long.head
    waiting = base_of(archive, early, long.states[early])
    long.history = OTHER_HISTORY
    long.grow(14)
    assert long.compacted()
    archive.commit_base(waiting, continues=True)
    manifest = destination.manifest
    assert list(rules.check(manifest)) == []
    assert manifest.history == OTHER_HISTORY
    for artifact in manifest.artifacts:
        assert (artifact.history == OTHER_HISTORY) == (artifact.to_position > last)
    (continued,) = [a for a in manifest.artifacts if a.is_snapshot and a.continues]
    assert (continued.epoch, continued.history, continued.to_position) == (2, HISTORY, early)
    for position, state in long.states.items():
        assert rows_at(destination, position) == state
        assert rows_at(destination, long.times[position]) == state
    read = Archive.open(destination, PREFIX)
    _, changes = read.changes(read.boundary(Position(early)), read.boundary())
    assert applied(long.states[early], changes) == long.states[long.head]
    with pytest.raises(OutOfOrder, match=f"history {HISTORY} doesn't go on from {OTHER_HISTORY}"):
        long.history = HISTORY
        long.grow(1)
