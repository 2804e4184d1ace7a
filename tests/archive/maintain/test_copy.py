"""A copy: whole, checked, named last; a later one brings it up to date; never in a writer's way."""

from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from laredo_archive.errors import ArtifactDamaged, ArtifactMissing, CopyRefused, CopyStopped, Fenced
from laredo_archive.maintain.collect import collect
from laredo_archive.maintain.copy import Copied, copy
from laredo_archive.maintain.repair import repair
from laredo_archive.maintain.verify import verify
from laredo_archive.manifest import rules
from laredo_archive.manifest.model import EpochPosition
from laredo_archive.read import location
from laredo_archive.read.location import FoundArchive
from laredo_archive.read.objects import Unwatched
from laredo_archive.reader import Archive
from laredo_archive.storage.access import S3Access
from laredo_archive.storage.destination import Destination
from laredo_archive.storage.local import LocalDestination
from laredo_archive.write.table_archive import TableArchive
from laredo_model.position import Position
from tests.support import drawn
from tests.support.archive.archiving import (
    AT_ONCE,
    ONE,
    OTHER_HISTORY,
    TABLE,
    THREE,
    TWO,
    anybodys,
    diffed,
    opened,
    rebased,
)
from tests.support.archive.building import Builder, row, state
from tests.support.archive.s3_maker import S3Maker
from tests.support.archive.several_epochs import several_epochs

FORMATS = ("jsonl", "protobuf")


class At(Unwatched):
    """Does something when the copy comes to a step, once."""

    def __init__(self, step: str, action: Callable[[], object]) -> None:
        self._step = step
        self._action: Callable[[], object] | None = action

    def step(self, text: str) -> None:
        if self._step in text and self._action is not None:
            action, self._action = self._action, None
            action()


def written(root: Path, **more: object) -> TableArchive:
    """An archive of a base and two diffs, in two formats, below ``root``."""
    archive = opened([LocalDestination(root)], **more)
    rebased(archive, 10, ONE, continues=False, formats=FORMATS)
    diffed(archive, 10, 20, ONE, TWO, formats=FORMATS)
    diffed(archive, 20, 30, TWO, THREE, formats=FORMATS)
    return archive


def copied(source: object, target: object, **more: object) -> Copied:
    place = location.parse(str(target))
    return copy(location.find(str(source)), place, **more)  # type: ignore[arg-type]


def assert_is_copy(source: object, target: object) -> FoundArchive:
    """``target`` is sound, and has the same artifacts, each whole and under its own name."""
    ours, theirs = location.find(str(source)), location.find(str(target))
    assert list(rules.check(theirs.manifest)) == []
    assert verify(Archive(theirs)).problems == []
    assert not theirs.is_renamed_copy
    assert theirs.manifest.head == ours.manifest.head
    assert theirs.manifest.seen_position == ours.manifest.seen_position
    for one, other in zip(ours.manifest.artifacts, theirs.manifest.artifacts, strict=True):
        assert one.same_as(other)
        assert (one.epoch, one.columns, one.follows) == (other.epoch, other.columns, other.follows)
        for entry in other.formats.values():
            assert entry.uri == theirs.destination.uri_of(entry.key)
    return theirs


def objects(destination: Destination, prefix: str = "") -> set[str]:
    return {info.key for info in destination.list(prefix)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    written(tmp_path / "from").close()
    return tmp_path / "from" / TABLE


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "to" / TABLE


def test_a_copy_is_the_archive_and_nobody_writes_it(source: Path, target: Path) -> None:
    done = copied(source, target)
    found = assert_is_copy(source, target)
    assert (done.tally.copied, done.tally.adopted, done.kept) == (6, 0, 0)
    assert done.tally.size_bytes == sum(entry.size_bytes for entry in found.manifest.named())
    assert found.manifest.writer_id is None
    assert found.manifest.writer_term == 1, "no writer of before comes in below it"
    assert found.manifest.retired == ()
    again = copied(source, target)
    assert (again.tally.copied, again.tally.adopted, again.kept) == (0, 0, 6)
    assert again.manifest.revision == done.manifest.revision, "nothing changed, nothing swapped"


def test_what_was_moved_is_copied_under_its_names_there(source: Path, tmp_path: Path) -> None:
    moved = source.rename(tmp_path / "moved")
    assert location.find(str(moved)).is_renamed_copy
    copied(moved, tmp_path / "to" / "again")
    assert_is_copy(moved, tmp_path / "to" / "again")


def test_what_has_left_the_source_is_retired_here_too(source: Path, target: Path) -> None:
    copied(source, target)
    with opened([LocalDestination(source.parent)], "w2", keep_epochs=1) as writer:
        rebased(writer, 30, THREE, formats=FORMATS)
    copied(source, target)
    found = assert_is_copy(source, target)
    assert len(found.manifest.retired) == 6
    for _ in range(2):
        collect(found.destination, TABLE, key_prefix=found.key_prefix, policy=AT_ONCE)
    left = {entry.key for entry in found.manifest.named()} | {found.manifest_key}
    assert objects(found.destination) == left


def test_what_the_source_has_retired_is_not_copied(source: Path, target: Path) -> None:
    with opened([LocalDestination(source.parent)], "w2", keep_epochs=1) as writer:
        rebased(writer, 30, THREE, formats=FORMATS)
    assert location.find(str(source)).manifest.retired
    done = copied(source, target)
    found = assert_is_copy(source, target)
    assert found.manifest.retired == ()
    assert done.tally.copied == 2
    assert len(objects(found.destination)) == 3


def test_a_copy_becomes_one_more_destination(source: Path, target: Path) -> None:
    copied(source, target)
    places = [LocalDestination(source.parent), LocalDestination(target.parent)]
    with opened(places, "w2") as writer:
        diffed(writer, 30, 40, THREE, ONE, formats=FORMATS)
    assert_is_copy(source, target)
    assert len(objects(places[1])) == 9, "nothing was copied again"


def test_what_sinks_were_told_goes_along(tmp_path: Path) -> None:
    with written(tmp_path / "from", sinks=["arn:one"]) as archive:
        assert archive.manifest is not None
        for artifact in archive.notices.outstanding("arn:one", archive.manifest)[:2]:
            archive.notices.mark_notified("arn:one", artifact)
        archive.record_notices()
    copied(tmp_path / "from" / TABLE, tmp_path / "to" / TABLE)
    notified = location.find(str(tmp_path / "to" / TABLE)).manifest.notified
    assert notified == {"arn:one": EpochPosition(1, Position(20))}


# Where it doesn't go.


def untouched(place: Path, act: Callable[[], object], why: str) -> None:
    before = {path: path.read_bytes() for path in place.rglob("*.json")}
    with pytest.raises(CopyRefused, match=why):
        act()
    assert {path: path.read_bytes() for path in place.rglob("*.json")} == before


def test_not_where_a_writer_is_at_work(source: Path, target: Path) -> None:
    copied(source, target)
    with opened([LocalDestination(target.parent)], "w2") as writer:
        untouched(target, lambda: copied(source, target), r"writer w2 \(term 2\) has claimed it")
        diffed(writer, 30, 40, THREE, ONE)


def test_not_where_a_writer_waits_for_its_first_base(source: Path, target: Path) -> None:
    with opened([LocalDestination(target.parent)], "w2"):
        untouched(target, lambda: copied(source, target), "writer w2")


def test_taking_over_shuts_the_writer_out(source: Path, target: Path) -> None:
    copied(source, target)
    with opened([LocalDestination(target.parent)], "w2") as writer:
        done = copied(source, target, take_over=True)
        assert done.manifest.writer_id is None
        assert done.manifest.writer_term == 3
        with pytest.raises(Fenced):
            diffed(writer, 30, 40, THREE, ONE)
    assert_is_copy(source, target)


def test_a_writer_that_claims_the_target_meanwhile_wins(source: Path, target: Path) -> None:
    writers: list[TableArchive] = []

    def claim() -> None:
        writers.append(opened([LocalDestination(target.parent)], "w2"))

    with pytest.raises(CopyRefused, match="writer w2"):
        copied(source, target, progress=At("listing", claim))
    with writers[0] as writer:
        rebased(writer, 5, ONE, continues=False)
    assert location.find(str(target)).manifest.head == EpochPosition(1, Position(5))


def test_not_over_another_table_s_archive(source: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with TableArchive.open([LocalDestination(other)], "public.u", key_prefix="x/") as archive:
        rebased(archive, 10, ONE, continues=False)
    untouched(other, lambda: copied(source, other / "x"), "it is the archive of public.u")


def released(place: Path) -> None:
    """As if it were a copy: nobody's."""
    manifest = place / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"writer_id":"w', '"was":"w'))


def test_not_over_an_archive_that_is_ahead(source: Path, target: Path) -> None:
    copied(source, target)
    with opened([LocalDestination(target.parent)], "w2") as writer:
        rebased(writer, 30, THREE)
    released(target)
    untouched(
        target,
        lambda: copied(source, target),
        r"it is ahead: it ends at 0/1E \(epoch 2\), and .* at 0/1E \(epoch 1\)",
    )
    copied(target, source.parent.parent / "back" / TABLE)


def test_not_over_another_history(source: Path, target: Path) -> None:
    with opened([LocalDestination(target.parent)], "w2") as writer:
        rebased(writer, 10, ONE, continues=False, history=OTHER_HISTORY)
    released(target)
    untouched(target, lambda: copied(source, target), "aren't an earlier state .* histories differ")


def test_not_over_another_past(source: Path, target: Path) -> None:
    with opened([LocalDestination(target.parent)], "w2") as writer:
        rebased(writer, 10, THREE, continues=False)
    released(target)
    untouched(target, lambda: copied(source, target), "at 0/A one has 2 rows")


@pytest.mark.parametrize("inner", ["", "/below", "/.."])
def test_not_into_itself(source: Path, inner: str) -> None:
    (source.parent / "manifest.json").write_bytes((source / "manifest.json").read_bytes())
    untouched(
        source.parent, lambda: copied(source, f"{source}{inner}"), "contains it, or is inside it"
    )


def test_not_over_a_copy_that_was_moved(source: Path, target: Path, tmp_path: Path) -> None:
    copied(source, target)
    moved = target.rename(tmp_path / "moved")
    untouched(moved, lambda: copied(source, moved), "have other names than its manifest has")


def test_nothing_to_copy(tmp_path: Path) -> None:
    opened([LocalDestination(tmp_path / "from")]).close()
    with pytest.raises(CopyRefused, match="there is nothing in it yet"):
        copied(tmp_path / "from" / TABLE, tmp_path / "to")
    assert not (tmp_path / "to").exists()


# What goes wrong on the way.


def test_bit_rot_at_the_source_is_found_and_nothing_is_named(source: Path, target: Path) -> None:
    rotten = source / "epoch=1" / "diff-0_A-0_14.jsonl"
    data = rotten.read_bytes()
    rotten.write_bytes(data[:-9] + b"X" + data[-8:])
    with pytest.raises(CopyStopped, match=r"its sha256 is .* objects are in place") as stopped:
        copied(source, target)
    assert isinstance(stopped.value.__cause__, ArtifactDamaged)
    assert not (target / "manifest.json").exists()
    assert not (target / "epoch=1" / rotten.name).exists(), "no object, and none half-finished"
    assert [path for path in target.rglob(".unfinished-*") if path.is_file()] == []
    rotten.write_bytes(data)
    again = copied(source, target)
    assert again.tally.adopted + again.tally.copied == 6
    assert_is_copy(source, target)


def test_an_object_that_is_gone_and_named_ends_it(source: Path, target: Path) -> None:
    (source / "epoch=1" / "diff-0_A-0_14.pb").unlink()
    with pytest.raises(CopyStopped, match=r"diff-0_A-0_14\.pb") as stopped:
        copied(source, target)
    assert isinstance(stopped.value.__cause__, ArtifactMissing)
    assert not (target / "manifest.json").exists()


def test_a_lost_object_that_a_later_base_replaces_keeps_no_copy_out(
    source: Path, target: Path
) -> None:
    with opened([LocalDestination(source.parent)], "w2") as writer:
        rebased(writer, 30, THREE, formats=FORMATS)
    (source / "epoch=1" / "snapshot-0_A.jsonl").unlink()
    repair(location.find(str(source)), [])
    done = copied(source, target)
    found = assert_is_copy(source, target)
    assert [entry.lost for entry in found.manifest.artifacts[0].formats.values()] == [True, False]
    assert done.tally.copied == 7
    assert copied(source, target).manifest.revision == done.manifest.revision, "nothing changed"


def test_what_was_copied_before_is_compared_by_its_bytes(source: Path, target: Path) -> None:
    """An equal size isn't enough: here an earlier copy's object has rotted since."""
    copied(source, target)
    (target / "manifest.json").unlink()
    rotten = target / "epoch=1" / "snapshot-0_A.jsonl"
    rotten.write_bytes(rotten.read_bytes().replace(b"a", b"b", 1))
    done = copied(source, target)
    assert (done.tally.copied, done.tally.adopted) == (1, 5)
    found = assert_is_copy(source, target)
    assert found.manifest.artifacts[0].formats["jsonl"].key != f"{TABLE}/epoch=1/{rotten.name}"


def test_an_object_that_was_lost_at_the_target_is_brought_again(source: Path, target: Path) -> None:
    copied(source, target)
    (target / "epoch=1" / "snapshot-0_A.jsonl").unlink()
    done = copied(source, target)
    assert (done.tally.copied, done.kept) == (1, 5)
    assert_is_copy(source, target)


def test_archives_without_sha256_are_copied_and_adopted_too(tmp_path: Path) -> None:
    source = several_epochs(tmp_path / "from", plain=True).write()
    target = tmp_path / "to" / "users"
    copied(source, target)
    (target / "manifest.json").unlink()
    assert copied(source, target).tally.adopted == 7
    assert_is_copy(source, target)


# On S3, at either side.


class Buckets:
    """Places in S3 as the command line names them."""

    def __init__(self, maker: S3Maker) -> None:
        self.maker = maker
        self.access = S3Access(endpoint=maker.server.endpoint, addressing="path")
        self.uri = f"s3://{maker.server.new_bucket()}/archives"

    def found(self, uri: str) -> FoundArchive:
        return location.find(uri, self.access)

    def copied(self, source: object, target: object) -> Copied:
        return copy(self.found(str(source)), location.parse(str(target), self.access))


@pytest.fixture(params=drawn.first(1, ["s3_server", "moto"]))
def buckets(request: pytest.FixtureRequest, makers: Callable[[str], S3Maker]) -> Buckets:
    return Buckets(makers(request.param))


def test_to_s3_within_it_and_back(source: Path, buckets: Buckets, tmp_path: Path) -> None:
    assert buckets.copied(source, f"{buckets.uri}/{TABLE}").tally.copied == 6
    assert buckets.copied(f"{buckets.uri}/{TABLE}/", f"{buckets.uri}/x y/é").tally.copied == 6
    assert buckets.copied(f"{buckets.uri}/x y/é/", tmp_path / "back" / TABLE).tally.copied == 6
    assert_is_copy(source, tmp_path / "back" / TABLE)
    found = buckets.found(f"{buckets.uri}/x y/é")
    assert found.key_prefix == "é/"
    assert verify(Archive(found)).problems == []
    for entry in found.manifest.named():
        assert entry.uri == f"{buckets.uri}/x y/{entry.key}"


def test_a_copy_in_s3_grows_and_takes_a_writer(source: Path, buckets: Buckets) -> None:
    place = f"{buckets.uri}/{TABLE}"
    buckets.copied(source, place)
    with opened([LocalDestination(source.parent)], "w2") as writer:
        diffed(writer, 30, 40, THREE, ONE, formats=FORMATS)
    done = buckets.copied(source, place)
    assert (done.tally.copied, done.kept) == (2, 6)
    with opened([buckets.found(place).destination], "w3") as writer:
        diffed(writer, 40, 50, ONE, TWO)
        with pytest.raises(CopyRefused, match="writer w3"):
            buckets.copied(source, place)
    assert verify(Archive(buckets.found(place))).sound


def test_large_objects_are_carried_in_parts(buckets: Buckets, tmp_path: Path) -> None:
    rows = state(*(row(number, "x" * 9000) for number in range(1000, 2100)))
    source = Builder(tmp_path / "from").base(100, rows).write()
    place = f"{buckets.uri}/users"
    assert buckets.copied(source, place).tally.size_bytes > 9_000_000
    destination = buckets.found(place).destination
    destination.delete("users/manifest.json")
    assert buckets.copied(source, place).tally.adopted == 1
    assert destination.collect_unfinished("", timedelta(0), anybodys) == 0
    with closing(destination.open("users/epoch=1/snapshot-0_64.jsonl")) as there:
        ours = source / "epoch=1" / "snapshot-0_64.jsonl"
        assert there.read() == ours.read_bytes()
