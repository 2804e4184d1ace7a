"""Order of a writer's commits, and the manifest after each."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from laredo_archive.codec import UnknownFormat
from laredo_archive.errors import (
    ArtifactDamaged,
    ArtifactMissing,
    ChecksumDiffers,
    CommitUnavailable,
    ManifestDamaged,
    OutOfOrder,
    SpoolUnavailable,
)
from laredo_archive.manifest import rules
from laredo_archive.manifest.model import EpochPosition
from laredo_archive.storage.local import LocalDestination
from laredo_archive.write import diff_encoding
from laredo_archive.write.table_archive import TableArchive
from laredo_archive.write.uploads import Content
from laredo_model.position import Position
from tests.support.archive.archiving import (
    EMPTY,
    HISTORY,
    MORNING,
    ONE,
    OTHER_HISTORY,
    THREE,
    TWO,
    NewStores,
    ScriptedDestination,
    base_of,
    based,
    begun_base,
    diffed,
    opened,
    rebased,
)
from tests.support.archive.truth import COLUMNS, checksum_of


@pytest.fixture
def destination(new_stores: NewStores) -> ScriptedDestination:
    """The only one of the archive."""
    [made] = new_stores()
    return made


def listed(destination: ScriptedDestination) -> list[tuple[str, int, int]]:
    manifest = destination.manifest
    assert list(rules.check(manifest)) == []
    return [(a.kind.value, a.epoch, a.to_position) for a in manifest.artifacts]


def test_opening_creates_an_empty_manifest(destination: ScriptedDestination) -> None:
    archive = opened([destination])
    manifest = destination.manifest
    assert (manifest.epoch, manifest.head_position, manifest.artifacts) == (0, None, ())
    assert (manifest.writer_id, manifest.writer_term) == ("w1", 1)
    assert archive.head is None


def test_the_first_base_and_a_diff(destination: ScriptedDestination) -> None:
    archive = based([destination])
    diffed(archive, 10, 20, ONE, TWO)
    assert listed(destination) == [("snapshot", 1, 10), ("diff", 1, 20)]
    head = archive.head
    assert head is not None
    assert (head.epoch, head.position, head.history) == (1, 20, HISTORY)
    assert (head.rows, head.checksum) == (3, checksum_of(TWO).hex())
    assert (head.columns, head.key_fields) == (COLUMNS, ("id",))
    assert (head.snapshot_position, head.snapshot_rows) == (10, 2)
    assert (head.diffs_since_snapshot, head.diff_changes) == (1, 2)
    assert head.diff_bytes == destination.manifest.artifacts[1].size_bytes
    assert destination.manifest.artifacts[0].continues is False
    assert destination.manifest.artifacts[0].formats["jsonl"].key == (
        "public.t/epoch=1/snapshot-0_A.jsonl"
    )
    assert destination.manifest.artifacts[1].formats["jsonl"].key == (
        "public.t/epoch=1/diff-0_A-0_14.jsonl"
    )


def test_a_base_that_isnt_the_running_state_commits_nothing(
    destination: ScriptedDestination,
) -> None:
    archive = based([destination])
    before = listed(destination)
    base = base_of(archive, 10, TWO)
    with pytest.raises(ChecksumDiffers) as caught:
        archive.commit_base(base, continues=True)
    assert f"lead to 2 rows, checksum {checksum_of(ONE).hex()}" in str(caught.value)
    assert f"has 3 rows, checksum {checksum_of(TWO).hex()}" in str(caught.value)
    assert listed(destination) == before
    diffed(archive, 10, 20, ONE, TWO)


def test_a_base_that_continues_needs_a_boundary_there(destination: ScriptedDestination) -> None:
    archive = based([destination])
    base = base_of(archive, 15, ONE)
    with pytest.raises(OutOfOrder, match="no artifact of history 7300:1:5 ends at 0/F"):
        archive.commit_base(base, continues=True)
    with pytest.raises(OutOfOrder, match="no artifact of history 7300:2:5"):
        archive.commit_base(base_of(archive, 10, ONE, history=OTHER_HISTORY), continues=True)


def test_within_a_history_the_head_never_goes_back(destination: ScriptedDestination) -> None:
    archive = based([destination])
    with pytest.raises(OutOfOrder, match="end at 0/9, which is before the archive's head, 0/A"):
        rebased(archive, 9, TWO, continues=False)
    with pytest.raises(OutOfOrder):
        diffed(archive, 10, 9, ONE, TWO)
    rebased(archive, 9, TWO, continues=False, history=OTHER_HISTORY)
    assert listed(destination) == [("snapshot", 1, 10), ("snapshot", 2, 9)]
    assert destination.manifest.history == OTHER_HISTORY
    assert destination.manifest.seen_position == 9


@pytest.mark.parametrize("start", [5, 15])
def test_a_diff_begins_at_the_head(destination: ScriptedDestination, start: int) -> None:
    archive = opened([destination])
    with pytest.raises(OutOfOrder, match="an empty one"):
        diffed(archive, start, 20, ONE, TWO)
    rebased(archive, 10, ONE, continues=False)
    with pytest.raises(OutOfOrder, match="this archive, one that ends at 0/A"):
        diffed(archive, start, 20, ONE, TWO)
    assert not [key for key in destination.store.objects if "diff" in key]


def test_the_same_commit_again_is_the_same_artifact(destination: ScriptedDestination) -> None:
    archive = based([destination])
    first = diffed(archive, 10, 20, ONE, TWO)
    revision = destination.manifest.revision
    again = diffed(archive, 10, 20, ONE, TWO)
    assert again.same_as(first)
    assert destination.manifest.revision == revision


def test_seen_is_raised_and_never_lowered(destination: ScriptedDestination) -> None:
    archive = opened([destination])
    with pytest.raises(OutOfOrder, match="can't be recorded as seen"):
        archive.see(Position(10))
    rebased(archive, 10, ONE, continues=False)
    assert destination.manifest.seen_position == 10
    archive.see(Position(50))
    revision = destination.manifest.revision
    archive.see(Position(40))
    assert (destination.manifest.seen_position, destination.manifest.revision) == (50, revision)
    with pytest.raises(OutOfOrder):
        archive.see(Position(9))
    diffed(archive, 10, 30, ONE, TWO)
    assert destination.manifest.seen_position == 50
    assert archive.head is not None
    assert archive.head.seen_position == 50


def test_to_time_never_goes_back(destination: ScriptedDestination) -> None:
    archive = based([destination])
    hour = timedelta(hours=1)
    diffed(archive, 10, 20, ONE, TWO, to_time=MORNING + hour)
    base = base_of(archive, 20, TWO, to_time=MORNING + 5 * hour)
    diffed(archive, 20, 30, TWO, THREE, to_time=MORNING)
    diffed(archive, 30, 40, THREE, ONE, to_time=None)
    archive.commit_base(base, continues=True)
    times = [artifact.to_time for artifact in destination.manifest.artifacts]
    assert times == [MORNING, *[MORNING + hour] * 4]


def test_a_base_that_vanished_everywhere_has_to_be_made_again(new_stores: NewStores) -> None:
    [destination] = new_stores()
    archive = opened([destination])
    base = base_of(archive, 10, ONE)
    del destination.store.objects["public.t/epoch=1/snapshot-0_A.jsonl"]
    with pytest.raises(ArtifactMissing, match="has to be made again"):
        archive.commit_base(base, continues=False)
    rebased(archive, 10, ONE, continues=False)
    assert listed(destination) == [("snapshot", 1, 10)]


def test_a_damaged_diff_does_not_stop_the_base_that_makes_up_for_it(
    destination: ScriptedDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination, "copy", lambda *_: None)  # the diff's bytes are read
    archive = based([destination])
    diffed(archive, 10, 20, ONE, TWO)
    base = base_of(archive, 20, TWO)
    [key] = diffed(archive, 20, 30, TWO, THREE).keys
    data, modified = destination.store.objects[key]
    destination.store.objects[key] = (data[:-2] + b"?\n", modified)
    archive.commit_base(base, continues=True)
    assert listed(destination)[-2:] == [("snapshot", 2, 20), ("diff", 2, 30)]
    assert destination.manifest.artifacts[-1].keys == [key]


def test_a_diff_with_damaged_bytes_is_given_up(
    destination: ScriptedDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = based([destination])
    with monkeypatch.context() as patch:
        patch.setattr(
            diff_encoding, "Content", lambda *given: replace(Content(*given), sha256="0" * 64)
        )
        with pytest.raises(ArtifactDamaged, match="its sha256 is"):
            diffed(archive, 10, 20, ONE, TWO)
    assert not archive.unfinished
    diffed(archive, 10, 20, ONE, TWO)
    assert listed(destination)[-1] == ("diff", 1, 20)


def test_an_orphan_with_the_same_bytes_is_adopted(new_stores: NewStores) -> None:
    [destination] = new_stores()
    archive = based([destination])
    first = diffed(archive, 10, 20, ONE, TWO)
    [other] = new_stores()
    key = first.formats["jsonl"].key
    other.store.create(key, destination.store.objects[key][0])
    archive = based([other])
    diffed(archive, 10, 20, ONE, TWO)
    assert other.manifest.artifacts[-1].keys == [key]


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if path.is_file())


def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    archive = opened([LocalDestination(tmp_path)])
    with pytest.raises(UnknownFormat):
        base_of(archive, 10, ONE, formats=("jsonl", "csv"))
    assert files(tmp_path) == [".manifest.json.lock", "manifest.json"]
    rebased(archive, 10, ONE, continues=False)
    before = files(tmp_path)
    with pytest.raises(UnknownFormat):
        diffed(archive, 10, 20, ONE, TWO, formats=("csv",))
    assert files(tmp_path) == before


def test_a_base_that_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    archive = opened([LocalDestination(tmp_path)])
    with begun_base(archive) as upload:
        upload.write([b"1"], [ONE[b"1"]])
    assert files(tmp_path) == [".manifest.json.lock", "manifest.json"]


def test_durable_means_on_all_and_in_order(new_stores: NewStores) -> None:
    stores = new_stores(2)
    archive = based(stores)
    stores[1].store.away_until = stores[1].store.world.now + 10_000
    with pytest.raises(CommitUnavailable, match=f"the commit waits for {re.escape(stores[1].uri)}"):
        diffed(archive, 10, 20, ONE, TWO)
    assert archive.unfinished
    assert archive.counts.destination_errors == {stores[1].location: 1}
    with pytest.raises(CommitUnavailable):
        archive.see(Position(20))
    with pytest.raises(CommitUnavailable):
        diffed(archive, 20, 30, TWO, THREE)
    assert all(listed(place) == [("snapshot", 1, 10)] for place in stores)
    stores[1].store.away_until = 0
    archive.settle()
    assert all(listed(place)[-1] == ("diff", 1, 20) for place in stores)
    assert not archive.unfinished
    diffed(archive, 20, 30, TWO, THREE)


def test_no_room_for_the_temporary_file_commits_nothing(
    destination: ScriptedDestination, tmp_path: Path
) -> None:
    archive = based([destination], spool_directory=tmp_path / "missing")
    big = {b"%05d" % i: b'{"id":%d,"v":"%s"}' % (i, b"x" * 1000) for i in range(5000)}
    with pytest.raises(SpoolUnavailable, match=r"missing.*source.local_snapshot_path"):
        diffed(archive, 10, 20, EMPTY, big)
    assert not archive.unfinished
    assert listed(destination) == [("snapshot", 1, 10)]


def test_a_manifest_of_another_table_is_refused(destination: ScriptedDestination) -> None:
    opened([destination])
    with pytest.raises(ManifestDamaged, match=r"to table public\.t, not to public\.other"):
        TableArchive.open([destination], "public.other", key_prefix="public.t/")


def test_what_sinks_were_told_is_in_the_next_commit(new_stores: NewStores) -> None:
    stores = new_stores(2)
    archive = based(stores, sinks=["a", "b"])
    diffed(archive, 10, 20, ONE, TWO)
    manifest = archive.manifest
    assert manifest is not None
    assert archive.notices.outstanding("a", manifest) == list(manifest.artifacts)
    archive.notices.mark_notified("a", manifest.artifacts[0])
    assert archive.notices.outstanding("a", manifest) == [manifest.artifacts[1]]
    diffed(archive, 20, 30, TWO, THREE)
    assert [place.manifest.notified for place in stores] == [
        {"a": EpochPosition(1, 10), "b": None}
    ] * 2  # type: ignore[arg-type]
    archive.notices.mark_notified("b", stores[0].manifest.artifacts[2])
    archive.record_notices()
    assert stores[1].manifest.notified["b"] == EpochPosition(1, Position(30))
    revision = stores[0].manifest.revision
    archive.record_notices()
    assert stores[0].manifest.revision == revision


def test_a_restart_tells_from_the_highest_that_any_manifest_says(new_stores: NewStores) -> None:
    stores = new_stores(2)
    archive = based(stores, sinks=["a"])
    diffed(archive, 10, 20, ONE, TWO)
    archive.notices.mark_notified("a", stores[0].manifest.artifacts[0])

    def go_away() -> None:
        stores[1].store.away_until = stores[1].store.world.now + 100

    stores[0].before_swap.append(go_away)
    with pytest.raises(CommitUnavailable):
        archive.record_notices()
    stores[1].store.away_until = 0
    again = opened(stores, "w2", sinks=["a", "new"])
    manifest = again.manifest
    assert manifest is not None
    assert [a.to_position for a in again.notices.outstanding("a", manifest)] == [20]
    assert again.notices.notified_of["new"] == EpochPosition(1, Position(10)), (
        "a new sink gets the newest"
    )


def test_threads_take_turns(tmp_path: Path) -> None:
    archive = based([LocalDestination(tmp_path / name) for name in ("one", "other")])
    base = begun_base(archive)
    done = threading.Event()

    def keep_looking() -> None:
        while not done.is_set():
            head = archive.head
            assert head is not None
            archive.see(Position(1000))
            archive.settle()

    def keep_writing() -> None:
        for key, line in sorted(ONE.items()):
            base.write([key], [line])

    with ThreadPoolExecutor(3) as threads:
        looking, writing = threads.submit(keep_looking), threads.submit(keep_writing)
        for position in range(10, 40):
            diffed(archive, position, position + 1, ONE, ONE)
        done.set()
        looking.result()
        writing.result()
    archive.commit_base(base.finish(None), continues=True)
    assert archive.head is not None
    assert (archive.head.epoch, archive.head.position) == (2, 40)
    assert archive.head.diffs_since_snapshot == 30
    assert archive.counts.cas_conflicts == 0


def test_the_same_destination_twice_is_one(tmp_path: Path) -> None:
    archive = based([LocalDestination(tmp_path), LocalDestination(f"{tmp_path}/./")])
    assert archive.manifest is not None
    assert archive.manifest.revision == 2
