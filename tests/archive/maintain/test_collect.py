"""The collector: nothing is deleted that a manifest names, may come to name, or a reader reads."""

from datetime import timedelta
from pathlib import Path

import pytest

from laredo_archive.errors import (
    CommitStateUnknown,
    DestinationUnavailable,
    ManifestDamaged,
    NotCollectable,
)
from laredo_archive.maintain.collect import Collected, Policy, collect
from laredo_archive.storage.local import LocalDestination
from tests.support.archive.archiving import (
    DAY,
    MANIFEST,
    ONE,
    PREFIX,
    TABLE,
    TWO,
    NewStores,
    ScriptedDestination,
    based,
    diffed,
    environment,
    opened,
)

HOUR = timedelta(hours=1)
A, B, C = (f"diff-0_{number}-0_{number}.jsonl" for number in (1, 2, 3))
"""Names that a writer gives, of objects that no manifest names."""


@pytest.fixture
def destination(new_stores: NewStores) -> ScriptedDestination:
    [destination] = new_stores()
    archive = based([destination])
    diffed(archive, 10, 20, ONE, TWO)
    return destination


def pass_time(destination: ScriptedDestination, time: timedelta) -> None:
    destination.store.world.now += time.total_seconds()


def run(destination: ScriptedDestination, **more) -> Collected:  # type: ignore[no-untyped-def]
    return collect(
        destination,
        TABLE,
        key_prefix=PREFIX,
        policy=Policy(cut_off=DAY, grace=2 * DAY),
        environment=environment(destination),
        **more,
    )


def litter(destination: ScriptedDestination, *names: str) -> None:
    for name in names:
        destination.store.create(f"public.t/epoch=1/{name}", b"litter")


def retired(destination: ScriptedDestination) -> dict[str, bool]:
    return {e.key.rpartition("/")[2]: e.at is not None for e in destination.manifest.retired}


def test_an_orphans_way_out(destination: ScriptedDestination) -> None:
    litter(destination, A)
    writer = destination.manifest.writer_id, destination.manifest.writer_term
    assert run(destination).orphans == [], "younger than the cut-off"
    pass_time(destination, DAY + HOUR)
    assert [orphan.key for orphan in run(destination).orphans] == [f"{PREFIX}epoch=1/{A}"]
    assert retired(destination) == {A: False}
    pass_time(destination, HOUR)
    assert run(destination).waiting == 1
    assert retired(destination) == {A: True}
    [entry] = destination.manifest.retired
    assert entry.at is not None
    assert destination.store.world.date - entry.at < HOUR
    pass_time(destination, 2 * DAY - HOUR)
    assert run(destination).deleted == []
    pass_time(destination, 2 * HOUR)
    assert run(destination).deleted == [f"{PREFIX}epoch=1/{A}"]
    assert f"{PREFIX}epoch=1/{A}" not in destination.store.objects
    assert destination.manifest.retired == ()
    assert (destination.manifest.writer_id, destination.manifest.writer_term) == writer
    assert len(destination.store.objects) == 3


def test_what_artifacts_name_is_never_an_orphan(destination: ScriptedDestination) -> None:
    pass_time(destination, 100 * DAY)
    revision = destination.manifest.revision
    result = run(destination)
    assert (result.orphans, result.deleted, result.waiting) == ([], [], 0)
    assert destination.manifest.revision == revision, "nothing to say, so nothing is written"


def test_a_dry_run_tells_and_does_nothing(destination: ScriptedDestination) -> None:
    due_for_deletion(destination, A, B)
    litter(destination, C)
    pass_time(destination, 2 * DAY)
    before = dict(destination.store.objects)
    result = run(destination, dry_run=True)
    assert [orphan.key for orphan in result.orphans] == [f"{PREFIX}epoch=1/{C}"]
    assert result.deleted == [f"{PREFIX}epoch=1/{A}", f"{PREFIX}epoch=1/{B}"]
    assert result.dry_run
    assert destination.store.objects == before


@pytest.mark.parametrize("content", [None, "empty", "damaged"])
def test_without_a_sound_manifest_nothing_is_collected(
    new_stores: NewStores, content: str | None
) -> None:
    [destination] = new_stores()
    failure: type[Exception] = NotCollectable
    if content == "empty":
        opened([destination])
    if content == "damaged":
        destination.store.create(MANIFEST, b"{")
        failure = ManifestDamaged
    litter(destination, A)
    pass_time(destination, 100 * DAY)
    before = dict(destination.store.objects)
    with pytest.raises(failure):
        run(destination)
    with pytest.raises(failure):
        run(destination, dry_run=True)
    assert destination.store.objects == before


def test_a_failed_listing_is_a_failure(
    destination: ScriptedDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> None:
        raise DestinationUnavailable(destination.uri, "away")

    monkeypatch.setattr(destination, "list", fail)
    with pytest.raises(DestinationUnavailable):
        run(destination)


def due_for_deletion(destination: ScriptedDestination, *names: str) -> None:
    litter(destination, *names)
    pass_time(destination, 2 * DAY)
    run(destination)
    run(destination)
    pass_time(destination, 3 * DAY)


def test_a_deletion_that_is_unclear_keeps_its_name_for_a_grace_period(
    destination: ScriptedDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    due_for_deletion(destination, A, B)
    real = destination.delete

    def unclear_for_a(key: str) -> None:
        real(key)
        if key.endswith(A):
            raise CommitStateUnknown(destination.uri_of(key), "time-out")

    monkeypatch.setattr(destination, "delete", unclear_for_a)
    assert run(destination).deleted == [f"{PREFIX}epoch=1/{B}"]
    assert retired(destination) == {A: True}
    monkeypatch.setattr(destination, "delete", real)
    pass_time(destination, DAY)
    assert run(destination).deleted == []
    pass_time(destination, 2 * DAY)
    assert run(destination).deleted == [f"{PREFIX}epoch=1/{A}"]
    assert destination.manifest.retired == ()


def test_a_deletion_that_fails_is_told_and_what_was_done_is_entered(
    destination: ScriptedDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    due_for_deletion(destination, A, B)
    real = destination.delete

    def fail_for_b(key: str) -> None:
        if key.endswith(B):
            raise DestinationUnavailable(destination.uri_of(key), "away")
        real(key)

    monkeypatch.setattr(destination, "delete", fail_for_b)
    with pytest.raises(DestinationUnavailable):
        run(destination)
    assert retired(destination) == {B: True}


def test_on_local_disk_left_overs_go_too(tmp_path: Path) -> None:
    import os

    local = LocalDestination(tmp_path)
    archive = based([local])
    litter_file = tmp_path / "public.t/epoch=1/snapshot-0_1.jsonl"
    litter_file.write_bytes(b"x")
    half = local.upload("public.t/epoch=1/snapshot-0_2.jsonl")
    half.write(b"x")
    week_ago = (archive.manifest.updated_at - timedelta(days=7)).timestamp()  # type: ignore[union-attr]
    for path in (tmp_path / "public.t/epoch=1").iterdir():
        os.utime(path, (week_ago, week_ago))
    result = collect(local, TABLE, key_prefix=PREFIX)
    assert [orphan.key for orphan in result.orphans] == ["public.t/epoch=1/snapshot-0_1.jsonl"]
    assert result.unfinished == 1
    assert litter_file.exists(), "it is only entered, not deleted"
    half.abort()
