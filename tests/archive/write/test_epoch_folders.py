"""Every artifact lies in its own epoch's folder, also after a re-base under load."""

import json
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from laredo_archive.maintain.collect import Policy, collect
from laredo_archive.manifest import parser
from laredo_archive.manifest.model import Manifest
from laredo_archive.reader import Archive
from laredo_archive.storage.local import LocalDestination
from laredo_archive.write.table_archive import TableArchive
from laredo_model.position import Position
from tests.support.archive.archiving import (
    MANIFEST,
    ONE,
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
from tests.support.archive.truth import State

AT_ONCE = Policy(cut_off=timedelta(seconds=-1), grace=timedelta(seconds=-1))
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
    boundary = archive.boundary(None if position is None else Position(position))
    return {
        key: line
        for keys, lines in archive.rows(boundary)
        for key, line in zip(keys, lines, strict=True)
    }


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


def test_the_former_stay_until_their_epoch_leaves(new_stores: NewStores) -> None:
    [store] = new_stores()
    archive = opened([store], keep_epochs=2)
    rebased_under_load(archive)
    before = {one.key for one in store.list("")}
    assert collected(store) == before
    rebased(archive, 40, ONE, formats=FORMATS)
    manifest = store.manifest
    assert manifest.former == ()
    gone = {key for key in before if "epoch=1" in key}
    assert manifest.retired_keys() == gone
    assert not {key for key in collected(store) if "epoch=1" in key}
    assert state_of(Archive.open(store, PREFIX)) == ONE


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
