"""Parts that files list are kept as long as a file may be read, and deleted after it."""

import gzip
import json
from datetime import timedelta

import pytest

from laredo_archive.maintain import collect as collecting
from laredo_archive.maintain.collect import Collected, Policy, collect
from laredo_archive.manifest import merged as merged_
from tests.support.archive.archiving import (
    MANIFEST,
    PREFIX,
    TABLE,
    ScriptedDestination,
    environment,
    memory,
    opened,
    rebased,
)
from tests.support.archive.long_archive import LongArchive, compacted, rows_at

HOUR = 3600.0


pytestmark = pytest.mark.usefixtures("short_lists")


def collected(destination: ScriptedDestination, hours: float = 2.0, **more: object) -> Collected:
    """A collection some hours later."""
    destination.store.world.now += hours * HOUR
    return collect(
        destination,
        TABLE,
        key_prefix=PREFIX,
        policy=Policy(timedelta(hours=1), timedelta(hours=1)),
        environment=environment(destination),
        **more,  # type: ignore[arg-type]
    )


def compacted_archive(destination: ScriptedDestination, **more: object) -> LongArchive:
    long = compacted(LongArchive(opened([destination], **more)))
    files = [key for key in destination.store.objects if "/parts-" in key]
    assert len(files) > 3
    assert len(files) > sum(key in destination.manifest.known_keys() for key in files)
    return long


def test_what_files_name_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    [destination] = memory()
    long = compacted_archive(destination)
    before = set(destination.store.objects)
    for _ in range(3):
        assert collected(destination).deleted == []
    assert set(destination.store.objects) == before
    for position, state in long.states.items():
        assert rows_at(destination, position) == state


@pytest.mark.parametrize("named_at_once", [2000, 1])
def test_dropped_parts_are_deleted_to_the_last(
    monkeypatch: pytest.MonkeyPatch, named_at_once: int
) -> None:
    monkeypatch.setattr(collecting, "NAMED_AT_ONCE", named_at_once)
    [destination] = memory()
    long = compacted_archive(destination)
    destination.store.world.now += 10 * HOUR
    long.grow(3)
    long.archive.merging.drop_parts(timedelta(hours=5))
    planned = collected(destination, 0, dry_run=True)
    assert planned.deleted == []
    collected(destination, 0)
    due = collected(destination, dry_run=True)
    done = collected(destination, 0)
    assert set(done.deleted) == set(due.deleted)
    assert len(done.deleted) > 80
    collected(destination)
    left = set(destination.store.objects) - destination.manifest.known_keys()
    assert left == {MANIFEST}
    assert destination.manifest.retired == ()
    for artifact in destination.manifest.artifacts:
        assert rows_at(destination, artifact.to_position) == long.states[artifact.to_position]


def test_an_epoch_that_leaves_takes_its_parts_along(destination: ScriptedDestination) -> None:
    long = compacted_archive(destination, keep_epochs=1)
    rebased(long.archive, long.head, long.states[long.head])
    for _ in range(3):
        collected(destination)
    assert set(destination.store.objects) == {MANIFEST} | destination.manifest.kept_keys()
    assert len(destination.manifest.artifacts) == 1


def test_a_list_deletes_only_what_it_covers_and_nothing_else_needs() -> None:
    [destination] = memory()
    long = compacted_archive(destination)
    head = destination.manifest.artifacts[-1].formats["jsonl"]
    base = destination.manifest.artifacts[0].formats["jsonl"]
    merged = next(a for a in destination.manifest.artifacts if a.parts and a.parts.file)
    assert merged.parts is not None and merged.parts.file is not None
    part = merged_.read(destination, merged.parts.file.key, merged.parts.file, PREFIX)[0]
    key = f"{PREFIX}epoch=1/parts-0_1-0_FFFF.json.gz"
    hostile = [
        {**part.to_json(), "formats": {"jsonl": {**head.to_json(), "key": named}}}
        for named in (
            head.key,
            base.key,
            MANIFEST,
            "other/epoch=1/diff-0_1-0_2.jsonl",
            part.formats["jsonl"].key,
        )
    ]
    body = json.dumps({"parts_version": 1, "diffs": hostile}).encode()
    objects = destination.store.objects
    for name in (key, "other/epoch=1/diff-0_1-0_2.jsonl"):
        objects[name] = (gzip.compress(body), *next(iter(objects.values()))[1:])
    before = set(objects)
    for _ in range(4):
        collected(destination)
    # An orphan by name: it is retired and deleted, and takes nothing along.
    assert before - set(objects) == {key}
    for position, state in long.states.items():
        assert rows_at(destination, position) == state


def test_an_unreadable_list_is_deleted_and_what_it_named_is_found_by_listing() -> None:
    [destination] = memory()
    long = compacted_archive(destination)
    destination.store.world.now += 10 * HOUR
    long.grow(3)
    long.archive.merging.drop_parts(timedelta(hours=5))
    for key in [key for key in destination.store.objects if "/parts-" in key]:
        destination.store.objects[key] = (b"?", *destination.store.objects[key][1:])
    for _ in range(5):
        collected(destination)
    assert set(destination.store.objects) == {MANIFEST} | destination.manifest.kept_keys()
