"""The table at every boundary, and what changed between two, from archives of every kind."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laredo_archive.errors import ArtifactDamaged, ManifestDamaged, NoSuchBoundary
from laredo_archive.maintain.verify import verify
from laredo_archive.read import external_sort, fold
from laredo_archive.reader import Archive
from laredo_archive.storage.destination import Destination
from laredo_archive.storage.local import LocalDestination
from laredo_archive.write.table_archive import TableArchive
from laredo_model import position as histories
from laredo_model.checksum import StateChecksum
from laredo_model.line import Action, Change
from laredo_model.position import Position
from tests.support.archive.building import HISTORY, START, Builder, State, row, state
from tests.support.archive.rows import Table, changes, tables
from tests.support.archive.several_epochs import FOUR, ONE, THREE, TWO, rows_at, several_epochs
from tests.support.drawn import examples


@pytest.mark.parametrize("kind", [{}, {"formats": ("protobuf",)}, {"shuffled": True}])
def test_changes_between_any_two_boundaries(tmp_path: Path, kind: dict[str, Any]) -> None:
    built = several_epochs(tmp_path, **kind)
    archive = Archive.at(str(built.write()))
    found = archive.boundaries
    for first in range(len(found)):
        for last in range(first, len(found)):
            truncated, changed = archive.changes(found[first], found[last])
            before = {} if truncated else built.states[first]
            assert list(changed) == changes(before, built.states[last]), (first, last)
    # Over the gap the states are compared; over the re-base that continues, the diffs are read.
    assert not archive.changes(found[0], found[5]).truncated
    assert archive.changes(found[0], found[4]).truncated


def test_changes_refuse_to_go_back(tmp_path: Path) -> None:
    archive = Archive.at(str(several_epochs(tmp_path).write()))
    with pytest.raises(NoSuchBoundary, match="exchange --from and --to"):
        archive.changes(archive.boundaries[2], archive.boundaries[0])


STATES = st.dictionaries(st.integers(0, 30), st.text("ab", max_size=2), max_size=12).map(
    lambda found: state(*(row(number, name) for number, name in found.items()))
)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["diff", "truncate", "base", "break", "gap"]), STATES)
    ),
    first=STATES,
    kind=st.tuples(st.booleans(), st.booleans()),
    tiny=st.booleans(),
)
def test_any_chain_folds_to_its_states(
    tmp_path_factory: pytest.TempPathFactory, steps, first: State, kind: tuple[bool, bool], tiny
) -> None:
    shuffled, plain = kind
    built = Builder(tmp_path_factory.mktemp("archive"), shuffled=shuffled, plain=plain)
    built.base(10, first)
    for number, (step, after) in enumerate(steps, start=2):
        if step in ("diff", "truncate"):
            built.diff(number * 10, after, truncate=step == "truncate")
        elif step == "base":
            built.base(built.head, built.states[-1])
        elif step == "break":  # such as after a schema change: no diff leads to its rows
            built.base(built.head, after, continues=False)
        else:
            built.base(number * 10, after, continues=False)
    archive = Archive.at(str(built.write()))
    with pytest.MonkeyPatch.context() as patch:
        if tiny:  # more files than are opened at once, more records than memory holds
            patch.setattr(fold, "OPEN_AT_ONCE", 1)
            patch.setattr(external_sort.Sorter.__init__, "__defaults__", (600,))
            patch.setattr(external_sort, "MERGED_AT_ONCE", 2)
        found = archive.boundaries
        for boundary, expected in zip(found, built.states, strict=True):
            assert rows_at(archive, boundary) == expected
        truncated, changed = archive.changes(found[0], found[-1])
        before = {} if truncated else built.states[0]
        assert list(changed) == changes(before, built.states[-1])


def test_several_changes_of_a_key_in_one_unsorted_diff_apply_in_their_order(tmp_path: Path) -> None:
    built = Builder(tmp_path, plain=True).base(100, state(row(1, "a")))
    key, a = row(1, "a")
    _, b = row(1, "b")
    _, c = row(1, "c")
    steps = changes({key: a}, {key: b}) + changes({key: b}, {}) + changes({}, {key: c})
    built.diff_of(200, {key: c}, steps)
    archive = Archive.at(str(built.write()))
    assert rows_at(archive, archive.boundary()) == {key: c}
    ((action, *_, new),) = archive.changes(*archive.boundaries).changes
    assert (action, new) == (Action.UPDATE, c)


def test_as_of_finds_the_last_boundary_at_or_before(tmp_path: Path) -> None:
    built = several_epochs(tmp_path)
    built.seen, built.seen_at = 900, START + timedelta(seconds=950)
    archive = Archive.at(str(built.write()))

    def at(as_of, **more) -> tuple[int, int]:
        boundary = archive.boundary(as_of, **more)
        return boundary.epoch, boundary.position

    assert at(None) == (3, 700)
    assert at(None, epoch=1) == (1, 300)
    assert at(100) == at(199) == (1, 100)
    assert at(300) == at(399) == (2, 300)
    assert at(300, epoch=1) == (1, 300)
    assert at(599) == (2, 400)
    assert at(900) == (3, 700)
    assert at(START + timedelta(seconds=250)) == (1, 200)
    assert at(START + timedelta(seconds=950)) == (3, 700)
    assert at(400, exact=True) == (2, 400)
    with pytest.raises(NoSuchBoundary, match=r"exactly at 0/FA: .* 0/C8, the one after at 0/12C"):
        at(250, exact=True)
    with pytest.raises(NoSuchBoundary, match=r"after the archive's last seen position, 0/384"):
        at(901)
    with pytest.raises(NoSuchBoundary, match="later than the archive's last seen time"):
        at(START + timedelta(seconds=951))
    with pytest.raises(NoSuchBoundary, match="0/63 is before its first boundary, 0/64"):
        at(99)
    with pytest.raises(NoSuchBoundary, match="no epoch 9"):
        at(None, epoch=9)


def test_an_epoch_that_others_followed_ends_where_it_ends(tmp_path: Path) -> None:
    """The head says what is beyond, not the epoch's own end."""
    built = several_epochs(tmp_path)
    built.seen = None
    archive = Archive.at(str(built.write()))
    assert archive.boundary(699, epoch=1).position == 300
    with pytest.raises(
        NoSuchBoundary, match=r"0/2BD is after the archive's last seen position, 0/2BC"
    ):
        archive.boundary(701, epoch=1)
    with pytest.raises(NoSuchBoundary, match=r"exactly at 0/2BB: the one before ends at 0/12C$"):
        archive.boundary(699, epoch=1, exact=True)


def test_as_of_takes_the_newest_history_that_has_it(tmp_path: Path) -> None:
    built = Builder(tmp_path).base(100, ONE).diff(500, TWO)
    built.history = "7300000000000000001:2:16384"
    built.base(300, THREE, continues=False).diff(350, FOUR)
    built.seen = 400
    archive = Archive.at(str(built.write()))

    def at(as_of, **more) -> tuple[int, int]:
        boundary = archive.boundary(as_of, **more)
        return boundary.epoch, boundary.position

    assert at(299) == (1, 100)
    assert at(300) == (2, 300)
    assert at(400) == (2, 350)
    assert at(100, exact=True) == (1, 100)
    with pytest.raises(NoSuchBoundary, match="after the archive's last seen position"):
        at(500)
    built.seen = 600
    archive = Archive.at(str(built.write()))
    assert at(500) == (2, 350)
    assert at(500, exact=True) == (1, 500)


def test_a_manifest_whose_diffs_do_not_follow_one_another(tmp_path: Path) -> None:
    directory = several_epochs(tmp_path).write()
    manifest = directory / "manifest.json"
    whole = manifest.read_text()
    manifest.write_text(whole.replace('"from_position": "0/64"', '"from_position": "0/65"'))
    with pytest.raises(ManifestDamaged, match="epoch 1 is at 0/64, and its next diff begins"):
        Archive.at(str(directory)).boundary()


def base_of(directory: Path) -> Path:
    return directory / "epoch=3" / "snapshot-0_258.jsonl"


def read_all(directory: Path) -> State:
    archive = Archive.at(str(directory))
    return rows_at(archive, archive.boundary())


def test_a_truncated_file_is_told_before_the_first_row(tmp_path: Path) -> None:
    directory = several_epochs(tmp_path).write()
    base = base_of(directory)
    base.write_bytes(base.read_bytes()[:-30])
    archive = Archive.at(str(directory))
    with pytest.raises(ArtifactDamaged, match=r"snapshot-0_258.jsonl: cut off: it has \d+ bytes"):
        next(iter(archive.rows(archive.boundary())))


def test_a_flipped_byte_is_told_by_the_hash(tmp_path: Path) -> None:
    directory = several_epochs(tmp_path).write()
    base = base_of(directory)
    whole = base.read_bytes()
    base.write_bytes(whole.replace(b"Ada", b"Eda"))
    with pytest.raises(ArtifactDamaged, match=r"snapshot-0_258.jsonl: its sha256 is"):
        read_all(directory)
    base.write_bytes(whole.replace(b'"id":2', b'"xd":2'))  # no row of this table any more
    with pytest.raises(ArtifactDamaged, match="its sha256 is"):
        read_all(directory)


def test_a_wrong_count_and_a_wrong_order_are_told(tmp_path: Path) -> None:
    built = several_epochs(tmp_path)
    built.artifacts[-2]["row_count"] = 4
    with pytest.raises(ArtifactDamaged, match="it has 3 rows, the manifest has 4"):
        read_all(built.write())
    built = several_epochs(tmp_path / "shuffled", shuffled=True)
    built.artifacts[-2]["formats"]["jsonl"]["sorted"] = True
    with pytest.raises(ArtifactDamaged, match="declares it sorted, but the key '10' comes after"):
        read_all(built.write())


def test_a_diff_in_wrong_order_or_without_its_row_is_told(tmp_path: Path) -> None:
    built = several_epochs(tmp_path / "shuffled", shuffled=True)
    for artifact in built.artifacts[-2:]:
        artifact["formats"]["jsonl"]["sorted"] = artifact["kind"] == "diff"
    with pytest.raises(ArtifactDamaged, match=r"diff-0_258-0_2BC.jsonl.*declares it sorted"):
        read_all(built.write())
    key, old = row(1, "Ada")
    built = Builder(tmp_path).base(100, ONE)
    built.diff_of(200, ONE, [Change(Action.UPDATE, key, old, None)])
    with pytest.raises(ArtifactDamaged, match="UPDATE of b'1' without a new row"):
        read_all(built.write())


def test_an_empty_archive_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoSuchBoundary, match="nothing in it yet"):
        Archive.at(str(Builder(tmp_path).write())).boundary()


def test_a_key_that_the_archive_doesn_t_name_can_be_given(tmp_path: Path) -> None:
    rows = {b"x": b'{"code":"x","n":1}', b"y": b'{"code":"y","n":2}'}
    built = Builder(tmp_path, plain=True).base(100, rows).diff(200, {b"y": rows[b"y"]})
    archive = Archive.at(str(built.write()), key_fields=["code"])
    assert rows_at(archive, archive.boundary()) == {b"y": rows[b"y"]}
    with pytest.raises(ArtifactDamaged, match=r'no key column "id".*set it with --key'):
        read_all(tmp_path / "users")


# Readers return the rows that the writer commits: any table, any states, every format.


class Writer:
    """Writes states as the snapshotter does, and remembers them by position."""

    def __init__(self, destination: Destination, table: Table, formats: tuple[str, ...]) -> None:
        self._archive = TableArchive.open([destination], "s.t", key_prefix="s.t/")
        self._table = table
        self._formats = formats
        self.states: dict[int, State] = {}
        self.position = 0

    def base(self, state: State, *, continues: bool) -> None:
        if not continues:
            self.position += 100
        with self._archive.snapshot(
            position=Position(self.position),
            history=histories.parse_history(HISTORY),
            columns=self._table.columns,
            key_fields=self._table.key_fields,
            formats=self._formats,
        ) as upload:
            upload.write(list(state), list(state.values()))
            base = upload.finish(START + timedelta(seconds=self.position))
        self._archive.commit_base(base, continues=continues)
        self.states[self.position] = state

    def diff(self, state: State, *, truncate: bool) -> None:
        checksum = StateChecksum()
        checksum.add(list(state.values()))
        before = {} if truncate else self.states[self.position]
        start, self.position = self.position, self.position + 100
        self._archive.commit_diff(
            changes(before, state),
            from_position=Position(start),
            to_position=Position(self.position),
            to_time=START + timedelta(seconds=self.position),
            rows=checksum.rows,
            checksum=checksum.hex(),
            formats=self._formats,
            truncate=truncate,
        )
        self.states[self.position] = state


@settings(max_examples=examples(40))
@given(data=st.data())
@pytest.mark.parametrize("formats", [("jsonl",), ("protobuf",), ("jsonl", "protobuf")])
def test_every_boundary_of_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, formats: tuple[str, ...], data: st.DataObject
) -> None:
    destination = LocalDestination(tmp_path_factory.mktemp("archive"))
    writer = written(destination, formats, data)
    assert_read(Archive.at(destination.uri + "s.t"), writer)


def written(destination: Destination, formats: tuple[str, ...], data: st.DataObject) -> Writer:
    """Any table, through any states."""
    table: Table = data.draw(tables())
    writer = Writer(destination, table, formats)
    writer.base(data.draw(table.rows(8)), continues=False)
    steps = st.sampled_from(["diff", "diff", "truncate", "re-base", "gap"])
    for step in data.draw(st.lists(steps, max_size=6)):
        if step == "re-base":
            writer.base(writer.states[writer.position], continues=True)
        elif step == "gap":
            writer.base(data.draw(table.rows(8)), continues=False)
        else:
            writer.diff(data.draw(table.rows(8)), truncate=step == "truncate")
    return writer


def assert_read(archive: Archive, writer: Writer) -> None:
    """Each of its states, and what changed between the first and the last."""
    report = verify(archive)
    assert (report.problems, report.remarks) == ([], [])
    for boundary in archive.boundaries:
        assert rows_at(archive, boundary) == writer.states[boundary.position]
    first, last = archive.boundaries[0], archive.boundaries[-1]
    truncated, changed = archive.changes(first, last)
    before = {} if truncated else writer.states[first.position]
    assert list(changed) == changes(before, writer.states[last.position])
