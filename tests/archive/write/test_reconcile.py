"""All destinations brought to the one that is ahead, or refused with both heads."""

import json
import re
from contextlib import closing
from pathlib import Path

import pytest

from laredo_archive.errors import ArtifactDamaged, CommitUnavailable, HistoriesDiffer
from laredo_archive.maintain.collect import collect
from laredo_archive.maintain.repair import repair
from laredo_archive.manifest import parser, rules
from laredo_archive.manifest.model import Manifest
from laredo_archive.reader import Archive
from laredo_archive.storage.local import LocalDestination
from laredo_archive.write.table_archive import TableArchive
from laredo_model.position import Position
from tests.support.archive.archiving import (
    AT_ONCE,
    MANIFEST,
    ONE,
    OTHER_HISTORY,
    PREFIX,
    TABLE,
    THREE,
    TWO,
    NewStores,
    ScriptedDestination,
    base_of,
    based,
    diffed,
    opened,
    rebased,
)
from tests.support.archive.several_epochs import rows_at
from tests.support.archive.truth import State


def keys(destination: ScriptedDestination) -> list[str]:
    return [entry.key for entry in destination.manifest.named()]


def assert_level(*stores: ScriptedDestination) -> None:
    first = stores[0].manifest
    for place in stores:
        manifest = place.manifest
        assert list(rules.check(manifest)) == []
        assert (manifest.head, manifest.history) == (first.head, first.history)
        assert len(manifest.artifacts) == len(first.artifacts)
        for one, other in zip(first.artifacts, manifest.artifacts, strict=True):
            assert one.same_as(other)
            assert one.epoch == other.epoch
        for entry in manifest.named():
            assert len(place.store.objects[entry.key][0]) == entry.size_bytes
            assert entry.uri == place.uri_of(entry.key)


def grown(stores: list[ScriptedDestination], **more) -> TableArchive:  # type: ignore[no-untyped-def]
    archive = based(stores, **more)
    diffed(archive, 10, 20, ONE, TWO)
    return archive


def behind_by_one(stores: list[ScriptedDestination], archive: TableArchive, commit) -> None:  # type: ignore[no-untyped-def]
    """``commit`` reaches the first store, and not the second."""
    interrupted(stores, archive, commit)
    archive.close()


def interrupted(stores: list[ScriptedDestination], archive: TableArchive, commit) -> None:  # type: ignore[no-untyped-def]
    def go_away() -> None:
        stores[1].store.away_until = stores[1].store.world.now + 10_000

    stores[0].before_swap.append(go_away)
    with pytest.raises(CommitUnavailable):
        commit(archive)
    stores[1].store.away_until = 0


def test_a_base_from_before_a_failover_is_committed_by_the_next_try(new_stores: NewStores) -> None:
    stores = new_stores(2)
    archive = grown(stores)
    base = base_of(archive, 20, TWO)
    diffed(archive, 20, 30, TWO, THREE, history=OTHER_HISTORY)
    interrupted(stores, archive, lambda a: a.commit_base(base, continues=True))
    archive.commit_base(base, continues=True)
    assert_level(*stores)
    diffed(archive, 30, 40, THREE, ONE)


def test_one_that_missed_a_rebase_is_relabelled_and_retired_like_the_other(
    new_stores: NewStores,
) -> None:
    stores = new_stores(2)
    archive = grown(stores, keep_epochs=1)
    base = base_of(archive, 20, TWO)
    diffed(archive, 20, 30, TWO, THREE)
    moved = "public.t/epoch=2/diff-0_14-0_1E.jsonl"
    behind_by_one(stores, archive, lambda a: a.commit_base(base, continues=True))
    opened(stores, "w2")
    assert_level(*stores)
    assert keys(stores[0])[-1] == keys(stores[1])[-1] == moved
    assert stores[1].manifest.retired_keys() == {
        "public.t/epoch=1/snapshot-0_A.jsonl",
        "public.t/epoch=1/diff-0_A-0_14.jsonl",
        "public.t/epoch=1/diff-0_14-0_1E.jsonl",
    }


def test_own_keys_are_kept(new_stores: NewStores) -> None:
    stores = new_stores(2)
    stores[1].store.create("public.t/epoch=1/snapshot-0_A.jsonl", b"someone else's")
    archive = grown(stores)
    own = keys(stores[1])
    assert own[0] == "public.t/epoch=1/snapshot-0_A-w1-1.jsonl"
    behind_by_one(stores, archive, lambda a: diffed(a, 20, 30, TWO, THREE))
    opened(stores, "w2")
    assert_level(*stores)
    assert keys(stores[1])[:2] == own
    assert keys(stores[0])[0] == "public.t/epoch=1/snapshot-0_A.jsonl"


def test_bases_with_the_same_bytes_stay_two_objects(new_stores: NewStores) -> None:
    """One object is named by one entry; a base is matched by epoch too."""
    stores = new_stores(2)
    archive = grown(stores)
    rebased(archive, 20, TWO)
    behind_by_one(stores, archive, lambda a: rebased(a, 20, TWO))
    assert [a.epoch for a in stores[1].manifest.artifacts] == [1, 1, 2]
    opened(stores, "w2")
    assert_level(*stores)
    assert len(set(keys(stores[1]))) == 4


def test_a_name_that_is_taken_at_the_other_place_is_not_replaced(new_stores: NewStores) -> None:
    old, new = new_stores(2)
    grown([old])
    new.store.create("public.t/epoch=1/snapshot-0_A.jsonl", b"someone else's")
    opened([old, new], "w2")
    assert_level(old, new)
    assert keys(new)[0] == "public.t/epoch=1/snapshot-0_A-w2-1.jsonl"
    assert new.store.objects["public.t/epoch=1/snapshot-0_A.jsonl"][0] == b"someone else's"


def test_what_was_copied_before_a_levelling_broke_off_is_not_copied_again(
    new_stores: NewStores,
) -> None:
    old, new = new_stores(2)
    grown([old])
    copied = keys(old)[0]
    new.store.objects[copied] = old.store.objects[copied]
    opened([new, old], "w2")
    assert_level(old, new)
    assert copied in keys(new)
    assert ("put", copied) not in new.requests


def test_what_is_copied_is_hash_checked(new_stores: NewStores) -> None:
    old, new = new_stores(2)
    grown([old])
    key = "public.t/epoch=1/diff-0_A-0_14.jsonl"
    data, date = old.store.objects[key]
    old.store.objects[key] = (data.replace(b"z", b"y"), date)
    with pytest.raises(ArtifactDamaged, match=f"{re.escape(old.uri)}.*diff.*its sha256 is"):
        opened([old, new], "w2")
    assert new.manifest.artifacts == ()
    assert key not in new.store.objects
    archive = opened([old, new], "w3", carry_lost=True)
    assert keys(new) == keys(old) and key not in new.store.objects
    rebased(archive, 30, THREE, continues=False)
    assert state_of(Archive.open(new, PREFIX)) == THREE


def test_a_lost_object_that_a_later_base_replaces_keeps_no_destination_out(
    new_stores: NewStores,
) -> None:
    old, new = new_stores(2)
    rebased(grown([old]), 20, TWO)
    gone = old.store.objects.pop(keys(old)[0])
    repair(Archive.open(old, PREFIX).found, [])
    opened([old, new], "w2")
    assert [entry.lost for entry in new.manifest.named()] == [True, False, False]
    assert keys(new) == keys(old)
    assert keys(new)[0] not in new.store.objects
    assert state_of(Archive.open(new, PREFIX)) == TWO
    old.store.objects[keys(old)[0]] = gone
    there = [Archive.open(place, PREFIX).found for place in (old, new)]
    repair(there[0], [])
    repair(there[1], there[:1])
    assert_level(old, new)
    assert not any(entry.lost for entry in [*old.manifest.named(), *new.manifest.named()])


def test_seen_comes_from_the_one_ahead(new_stores: NewStores) -> None:
    old, new = new_stores(2)
    archive = grown([old])
    archive.see(Position(77))
    opened([old, new], "w2")
    assert new.manifest.seen_position == 77


def refused(stores: list[ScriptedDestination], complaint: str) -> None:
    before = [dict(place.store.objects) for place in stores]
    with pytest.raises(HistoriesDiffer, match=complaint):
        opened(stores, "w9")
    after = [dict(place.store.objects) for place in stores]
    for one, other in zip(before, after, strict=True):
        assert one.keys() == other.keys()
        del one[MANIFEST], other[MANIFEST]
        assert one == other


def test_archives_of_different_histories_are_refused(new_stores: NewStores) -> None:
    one, other = new_stores(2)
    archive = opened([one])
    rebased(archive, 10, ONE, continues=False, history=OTHER_HISTORY)
    diffed(archive, 10, 20, ONE, TWO)
    rebased(opened([other]), 10, ONE, continues=False)
    refused(
        [one, other],
        r"their histories differ \(epoch 1, head 0/14, history 7300:2:5 against epoch 1, head"
        r" 0/A, history 7300:1:5\)",
    )


def test_a_head_that_is_no_boundary_of_the_other_is_refused(new_stores: NewStores) -> None:
    one, other = new_stores(2)
    diffed_archive = grown([one])
    diffed(diffed_archive, 20, 30, TWO, THREE)
    archive = based([other])
    diffed(archive, 10, 25, ONE, TWO)
    refused([one, other], r"isn't the end of an artifact of the other .*head 0/1E.*head 0/19")


def test_other_contents_at_the_same_boundary_are_refused(new_stores: NewStores) -> None:
    one, other = new_stores(2)
    grown([one])
    rebased(opened([other]), 10, THREE, continues=False)
    refused([one, other], r"at 0/A one has 2 rows, checksum \w+, the other 1, \w+")


def test_a_new_history_that_came_to_one_only_is_no_foreign_archive(new_stores: NewStores) -> None:
    """keep_epochs = 1: the one ahead has no artifact of the other's history any more."""
    stores = new_stores(2)
    archive = grown(stores, keep_epochs=1)
    behind_by_one(
        stores,
        archive,
        lambda a: rebased(a, 5, THREE, continues=False, history=OTHER_HISTORY),
    )
    assert {a.history for a in stores[0].manifest.artifacts} == {OTHER_HISTORY}
    opened(stores, "w2")
    assert_level(*stores)


# Every artifact lies in its own epoch's folder, also after a re-base under load.


FORMATS = ("jsonl", "protobuf")


def rebased_under_load(archive: TableArchive) -> None:
    """Base at 10, diff to 20, and two diffs while the base at 20 is made."""
    rebased(archive, 10, ONE, continues=False, formats=FORMATS)
    diffed(archive, 10, 20, ONE, TWO, formats=FORMATS)
    base = base_of(archive, 20, TWO, formats=FORMATS)
    diffed(archive, 20, 30, TWO, THREE, formats=FORMATS)
    diffed(archive, 30, 40, THREE, ONE, formats=FORMATS)
    archive.commit_base(base, continues=True)


def state_of(archive: Archive, position: int | None = None) -> State:
    return rows_at(archive, archive.boundary(None if position is None else Position(position)))


def by_epoch(manifest: Manifest) -> dict[int, set[str]]:
    """The keys of each epoch's artifacts, and of what was its before a re-base."""
    found: dict[int, set[str]] = {}
    for artifact in manifest.artifacts:
        found.setdefault(artifact.epoch, set()).update(artifact.keys)
    for entry in manifest.former:
        found[entry.epoch].add(entry.key)
    return found


def test_a_listing_by_epoch_equals_the_manifests(new_stores: NewStores) -> None:
    stores = new_stores(2)
    rebased_under_load(opened(stores))
    for store in stores:
        manifest = store.manifest
        assert {epoch: len(keys) for epoch, keys in by_epoch(manifest).items()} == {1: 8, 2: 6}
        for epoch, keys in by_epoch(manifest).items():
            assert {one.key for one in store.list(f"{PREFIX}epoch={epoch}/")} == keys
        newest = {one.key for one in store.list(f"{PREFIX}epoch=2/")}
        assert newest == {
            f"{PREFIX}epoch=2/{name}.{extension}"
            for name in ("snapshot-0_14", "diff-0_14-0_1E", "diff-0_1E-0_28")
            for extension in ("jsonl", "pb")
        }
        for entry in manifest.named():
            assert entry.uri == store.uri_of(entry.key)
            former = entry.key.replace("epoch=2", "epoch=1")
            if former in {one.key for one in manifest.former}:
                with closing(store.open(entry.key)) as new, closing(store.open(former)) as old:
                    assert new.read() == old.read()
        archive = Archive.open(store, PREFIX)
        assert [state_of(archive, end) for end in (10, 20, 30, 40)] == [ONE, TWO, THREE, ONE]


def test_on_a_disk_it_is_one_file(tmp_path: Path) -> None:
    with opened([LocalDestination(tmp_path)]) as archive:
        rebased_under_load(archive)
        assert archive.manifest is not None
        former = archive.manifest.former
    assert len(former) == 4
    for one in former:
        assert (tmp_path / one.key).samefile(tmp_path / one.key.replace("epoch=1", "epoch=2"))


def collected(store: ScriptedDestination) -> set[str]:
    """Objects that are left after a collector that may delete everything at once."""
    for _ in range(3):
        collect(store, TABLE, key_prefix=PREFIX, policy=AT_ONCE)
    return {one.key for one in store.list("")}


def test_a_name_that_is_taken_there(new_stores: NewStores) -> None:
    """By something else: another name. By the same bytes, of a writer that was killed: adopted."""
    [store] = new_stores()
    store.store.create(f"{PREFIX}epoch=2/diff-0_14-0_1E.jsonl", b"something else")
    archive = based([store])
    diffed(archive, 10, 20, ONE, TWO)
    base = base_of(archive, 20, TWO)
    diffed(archive, 20, 30, TWO, THREE)
    adopted = diffed(archive, 30, 40, THREE, ONE).formats["jsonl"]
    with closing(store.open(adopted.key)) as file:
        store.store.create(f"{PREFIX}epoch=2/diff-0_1E-0_28.jsonl", file.read())
    archive.commit_base(base, continues=True)
    assert [entry.key for entry in store.manifest.named()][-2:] == [
        f"{PREFIX}epoch=2/diff-0_14-0_1E-w1-1.jsonl",
        f"{PREFIX}epoch=2/diff-0_1E-0_28.jsonl",
    ]
    assert state_of(Archive.open(store, PREFIX)) == ONE


def test_a_diff_that_is_missing_doesnt_keep_a_base_out(new_stores: NewStores) -> None:
    [store] = new_stores()
    archive = based([store])
    base = base_of(archive, 10, ONE)
    gone = diffed(archive, 10, 20, ONE, TWO).formats["jsonl"].key
    del store.store.objects[gone]
    archive.commit_base(base, continues=True)
    assert [entry.key for entry in store.manifest.named()][-1] == gone
    rebased(archive, 20, TWO)
    assert state_of(Archive.open(store, PREFIX)) == TWO


def test_archives_whose_diffs_lie_in_the_former_folder_are_read_and_go_on(
    new_stores: NewStores,
) -> None:
    """As writers before this rule left them."""
    [store] = new_stores()
    rebased_under_load(opened([store], keep_epochs=2))
    content = json.loads(store.store.objects[MANIFEST][0])
    for artifact in content["artifacts"]:
        if artifact["kind"] == "diff" and artifact["epoch"] == 2:
            for entry in artifact["formats"].values():
                store.store.objects.pop(entry["key"])
                entry["key"] = entry["key"].replace("epoch=2", "epoch=1")
    del content["former"]
    body = json.dumps(content).encode()
    parser.parse(body, "as it was")
    store.store.objects.pop(MANIFEST)
    store.store.create(MANIFEST, body)
    archive = Archive.open(store, PREFIX)
    assert [state_of(archive, end) for end in (10, 20, 30, 40)] == [ONE, TWO, THREE, ONE]
    writer = opened([store], "w2", keep_epochs=2)
    base = base_of(writer, 30, THREE)
    writer.commit_base(base, continues=True)
    assert [(a.epoch, a.to_position) for a in store.manifest.artifacts] == [
        (2, 20),
        (2, 30),
        (3, 30),
        (3, 40),
    ]
    assert f"{PREFIX}epoch=3/diff-0_1E-0_28.jsonl" in store.manifest.kept_keys()
    collected(store)
    archive = Archive.open(store, PREFIX)
    assert [state_of(archive, end) for end in (20, 30, 40)] == [TWO, THREE, ONE]
