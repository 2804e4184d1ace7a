"""A location that others use too: nothing of theirs is retired, deleted, replaced or read."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from laredo_archive.errors import NotCollectable, PrefixMeant
from laredo_archive.maintain.collect import collect
from laredo_archive.maintain.copy import copy
from laredo_archive.manifest import object_keys, parser
from laredo_archive.manifest.model import Manifest, Retired
from laredo_archive.read import location
from laredo_archive.reader import Archive
from laredo_archive.storage.destination import Destination
from laredo_archive.storage.local import LocalDestination
from laredo_snapshotter import config
from laredo_snapshotter.check import _archive
from laredo_snapshotter.destinations import Stores
from tests.support.archive.archiving import (
    AT_ONCE,
    MORNING,
    ONE,
    PREFIX,
    TABLE,
    TWO,
    diffed,
    opened,
    rebased,
)
from tests.support.archive.objects import put

NAMES = """
    photos/holiday.jpg epoch=1/photo.jpg epoch=1/snapshot-0_1.jsonl.bak
    epoch=1/snapshot-0_1.jsonl/inside epoch=1/deeper/snapshot-0_1.jsonl epoch=1/snapshot-0_1
    epoch=1/snapshot-0_1.csv epoch=1/snapshot-0_1-0_2.jsonl epoch=1/snapshot-0_g.jsonl
    epoch=1/snapshot-0_1-copy.jsonl epoch=1/diff-0_1.jsonl epoch=1/Snapshot-0_1.jsonl
    epoch=x/snapshot-0_1.jsonl epoch=/snapshot-0_1.jsonl epoch=-1/snapshot-0_1.jsonl
    xepoch=1/snapshot-0_1.jsonl epoch=1x/snapshot-0_1.jsonl snapshot-0_1.jsonl
    manifest.json.old other_table/manifest.json other_table/epoch=1/snapshot-0_1.jsonl
    epoch=1/other_table/epoch=1/snapshot-0_1.jsonl
"""
ABOVE = "public.t_eu/epoch=1/snapshot-0_1.jsonl epoch=1/snapshot-0_1.jsonl top.txt"
FOREIGN = [*(f"{PREFIX}{name}" for name in NAMES.split()), *ABOVE.split()]
OWN_NAMES = """
    epoch=1/snapshot-0_1.jsonl epoch=1/snapshot-FFFFFFFF_1.pb epoch=17/snapshot-0_1.parquet
    epoch=1/diff-0_1-0_2.jsonl epoch=1/diff-0_1-0_2-w1-12.pb
    epoch=1/snapshot-0_1-00ff00ff00ff00ff-3.jsonl
    epoch=1/diff-0_30-0_70-b7c696cd8e0afd58-10-43bd489d80319154-2.pb
"""
OURS = [f"{PREFIX}{name}" for name in OWN_NAMES.split()]


def keys(destination: Destination) -> set[str]:
    return {info.key for info in destination.list("")}


def archived(destination: Destination, **more: str) -> None:
    with opened([destination], **more) as archive:
        rebased(archive, 10, ONE, continues=False)
        diffed(archive, 10, 20, ONE, TWO)


def rewrite(destination: Destination, **changed: object) -> None:
    key = object_keys.manifest_key(PREFIX)
    found = destination.get(key)
    assert found is not None
    manifest = replace(parser.parse(found.data, key), **changed)  # type: ignore[arg-type]
    destination.swap(key, manifest.to_bytes(), found.version.etag)


def manifest_of(destination: Destination) -> Manifest:
    return Archive.open(destination, PREFIX).manifest


def collected(destination: Destination) -> None:
    """As often as it takes: entered, dated, deleted, dropped."""
    for _ in range(4):
        collect(destination, TABLE, key_prefix=PREFIX, policy=AT_ONCE)


@pytest.mark.parametrize("key", [*FOREIGN, f"{OURS[0]}\n", f"{PREFIX}../{OURS[0]}", OURS[0][1:]])
def test_names_that_no_writer_gives(key: str) -> None:
    assert not object_keys.is_own(key, PREFIX)


def test_a_collector_leaves_what_has_another_name(destination: Destination) -> None:
    archived(destination)
    mine = keys(destination)
    for key in FOREIGN + OURS:
        if key.endswith("jsonl/inside") and isinstance(destination, LocalDestination):
            continue  # a directory of that name can't be beside the file
        put(destination, key, b"theirs")
    before = keys(destination)
    collected(destination)
    assert keys(destination) == before - set(OURS)
    assert mine <= keys(destination)
    assert manifest_of(destination).retired == ()


def test_what_a_manifest_has_retired_for_others_stays(destination: Destination) -> None:
    """Whoever writes to the bucket may write to the manifest, and name anything there."""
    archived(destination)
    for key in [*FOREIGN, OURS[0]]:
        if not key.endswith("jsonl/inside"):
            put(destination, key, b"theirs")
    victims = keys(destination) - set(OURS) - set(manifest_keys(destination))
    named = [Retired(key, MORNING) for key in sorted(victims | {OURS[0]})]
    rewrite(destination, retired=(*named, Retired(f"{PREFIX}manifest.json", MORNING)))
    with capture_logs() as logs:
        collected(destination)
    deleted = {entry["uri"] for entry in logs if entry["event"] == "object deleted"}
    assert deleted == {destination.uri_of(OURS[0])}
    assert victims <= keys(destination)
    assert manifest_of(destination).retired == (), "they are let go: nobody deletes them"


def manifest_keys(destination: Destination) -> Iterator[str]:
    yield object_keys.manifest_key(PREFIX)
    for entry in manifest_of(destination).named():
        yield entry.key


@pytest.fixture
def uploads_of_others(destination: Destination) -> Iterator[None]:
    """Large enough to be multipart uploads, never finished."""
    theirs = [
        destination.upload(f"{PREFIX}{name}")
        for name in ("photos/holiday.jpg", "epoch=1/photo.jpg", "other/epoch=1/snapshot-0_1.jsonl")
    ]
    for upload in theirs:
        upload.write(bytes(9 << 20))
    yield
    for upload in theirs:
        upload.finish()  # it would fail if its parts had been dropped


@pytest.mark.usefixtures("uploads_of_others")
def test_unfinished_uploads_of_others_go_on(destination: Destination) -> None:
    archived(destination)
    ours = destination.upload(OURS[0])
    ours.write(bytes(9 << 20))
    policy = replace(AT_ONCE, cut_off=timedelta(0))
    run = collect(destination, TABLE, key_prefix=PREFIX, policy=policy)
    assert run.unfinished == 1
    ours.abort()
    opened([destination], "w2").close()


@pytest.mark.parametrize("prefix", ["", "public.t"])
def test_an_archive_without_a_directory_of_its_own_isnt_collected(
    destination: Destination, prefix: str
) -> None:
    archived(destination, key_prefix=prefix)
    put(destination, f"{prefix}epoch=1/snapshot-0_1.jsonl", b"theirs")
    before = keys(destination)
    for dry_run in (True, False):
        with pytest.raises(NotCollectable, match="laredo-archive copy"):
            collect(destination, TABLE, key_prefix=prefix, policy=AT_ONCE, dry_run=dry_run)
    assert keys(destination) == before


def test_a_first_claim_says_what_else_is_there_once(destination: Destination) -> None:
    put(destination, f"{PREFIX}photos/holiday.jpg", b"theirs")
    put(destination, OURS[0], b"theirs")
    for writer, times in (("w1", 1), ("w2", 0)):
        with capture_logs() as logs:
            opened([destination], writer).close()
        said = [entry for entry in logs if entry["event"] == "foreign objects found"]
        assert len(said) == times
        if said:
            assert (
                "1 objects of other programs, such as public.t/photos/holiday.jpg"
                in said[0]["found"]
            )
            assert f"such as {OURS[0]}, which the collector will delete" in said[0]["found"]


def test_a_first_claim_of_an_empty_location_says_nothing(destination: Destination) -> None:
    with capture_logs() as logs:
        opened([destination]).close()
    assert [entry for entry in logs if "foreign objects" in entry["event"]] == []


def test_an_archive_of_a_prefix_without_a_slash_isnt_begun_anew(tmp_path: Path) -> None:
    """``users`` was a prefix once, and is a directory now: the archive goes on, or is moved."""
    local = LocalDestination(tmp_path)
    archived(local, key_prefix="public.t")
    before = keys(local)
    with pytest.raises(PrefixMeant, match=r"laredo-archive copy (\S+) (\S+) ;") as refused:
        opened([local], "w2")
    assert keys(local) == before
    words = str(refused.value).split()
    source, target = words[words.index("copy") + 1 : words.index("copy") + 3]
    copy(location.find(source), location.parse(target))
    with opened([local], "w2") as archive:
        assert archive.head is not None and archive.head.position == 20
    with pytest.raises(NotCollectable):
        collect(local, TABLE, key_prefix="public.t")


def test_another_tables_old_prefix_is_no_hindrance(tmp_path: Path) -> None:
    local = LocalDestination(tmp_path)
    local.swap("public.tmanifest.json", b"not of ours", None)
    opened([local]).close()


def test_copies_and_levelled_places_get_names_of_their_own_only(tmp_path: Path) -> None:
    """A manifest may call its objects as it likes, also as somebody else's new object."""
    hostile = LocalDestination(tmp_path / "hostile")
    archived(hostile)
    manifest = manifest_of(hostile)
    artifacts = []
    for number, artifact in enumerate(manifest.artifacts):
        entry = artifact.formats["jsonl"]
        key = f"{PREFIX}other_table/manifest.json" if number else f"{PREFIX}.ssh/authorized_keys"
        (tmp_path / "hostile" / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "hostile" / entry.key).rename(tmp_path / "hostile" / key)
        artifacts.append(replace(artifact, formats={"jsonl": replace(entry, key=key)}))
    rewrite(hostile, artifacts=tuple(artifacts))
    expected = {object_keys.manifest_key(PREFIX), *(a.keys[0] for a in manifest.artifacts)}

    copied = LocalDestination(tmp_path / "copied")
    copy(location.find(f"{hostile.uri}{PREFIX}"), location.parse(f"{copied.uri}{PREFIX}"))
    assert keys(copied) == expected

    levelled = LocalDestination(tmp_path / "levelled")
    opened([hostile, levelled], "w2").close()
    assert keys(levelled) == expected


def test_check_says_what_else_is_there(tmp_path: Path) -> None:
    config_file = tmp_path / "w.conf"
    config_file.write_text(
        'snapshotter { source { server = "localhost:1", table = users },'
        f' destinations = [ {{ type = local, path = "{tmp_path}" }} ] }}'
    )
    [table] = config.matching_tables(config.load(config_file), {})
    [place] = table.destinations
    put(LocalDestination(tmp_path), "users/photos/\x1bholiday.jpg", b"theirs")
    finding, _ = _archive(table, place, Stores())
    assert finding.good
    assert "1 objects of other programs, such as users/photos/" in finding.detail
    archived(LocalDestination(tmp_path / "old"), key_prefix="users")
    other = tmp_path / "old" / "usersmanifest.json"
    other.rename(tmp_path / "usersmanifest.json")
    text = (tmp_path / "usersmanifest.json").read_text()
    (tmp_path / "usersmanifest.json").write_text(text.replace(TABLE, "public.users"))
    [finding] = _archive(table, place, Stores())
    assert not finding.good
    assert "laredo-archive copy" in finding.detail
