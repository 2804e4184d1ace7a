"""A table read in key ranges is the table: nothing twice, nothing missing, little read twice."""

import random
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laredo_archive.codec import BadBytes, ByteSource, jsonl, parquet, protobuf, struct_reader
from laredo_archive.codec.arrow.range_rows import batches
from laredo_archive.codec.arrow.rows import RowReader
from laredo_archive.manifest import key_ranges
from laredo_archive.manifest.key_ranges import KeyRange, ObjectSlice, RangeRead
from laredo_archive.manifest.model import FormatEntry
from laredo_archive.manifest.timeline import Boundary
from laredo_archive.reader import Archive
from tests.support.archive.building import COLUMNS, Builder, State, row
from tests.support.drawn import examples

Rows = list[dict[str, Any]]
FORMATS = ("jsonl", "protobuf", "parquet")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks small, so that small files have splits."""
    for format_ in (jsonl, protobuf):
        monkeypatch.setattr(format_, "SNAPSHOT_BLOCK", 200)
        monkeypatch.setattr(format_, "DIFF_BLOCK", 100)
    monkeypatch.setattr(parquet, "SNAPSHOT_BLOCK", 200)


class Table:
    """An archive's table, by ranges."""

    def __init__(
        self, place: Path, format_id: str = "jsonl", wanted: Sequence[str] | None = None
    ) -> None:
        self.archive = Archive.at(str(place))
        self.format_id = format_id
        self.reader = RowReader(COLUMNS, wanted=wanted)
        self.bytes_read = 0

    def choose(self, artifact: Any) -> Any:
        there = self.format_id if self.format_id in artifact.formats else None
        return self.archive.files.choose(artifact, there)

    @contextmanager
    def open_slice(self, part: ObjectSlice) -> Iterator[ByteSource]:
        with closing(self.archive.found.destination.open(part.entry.key, part.start)) as source:
            yield _Counted(source, self)

    def rows(self, read: RangeRead) -> Rows:
        found = batches(read, self.reader, COLUMNS, self.open_slice)
        return [line for batch in found for line in batch.to_pylist()]

    def plan(self, boundary: Boundary, parts: int) -> list[RangeRead]:
        return key_ranges.plan(boundary, self.choose, parts)


class _Counted:
    def __init__(self, source: ByteSource, table: Table) -> None:
        self._source = source
        self._table = table

    def read(self, size: int = -1, /) -> bytes:
        data = self._source.read(size)
        self._table.bytes_read += len(data)
        return data


def truth(state: State, wanted: Sequence[str] | None = None) -> Rows:
    rows = RowReader(COLUMNS).batch(b"".join(line + b"\n" for line in state.values())).to_pylist()
    return [
        {name: value for name, value in row.items() if wanted is None or name in wanted}
        for row in rows
    ]


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=str)


_NUMBERS = st.integers(-3, 400)
_STATES = st.lists(
    st.tuples(
        st.dictionaries(_NUMBERS, st.sampled_from(["a", "b", 'x"y', "ü" * 20]), max_size=60),
        st.integers(0, 9).map(lambda n: n == 0),
    ),
    min_size=1,
    max_size=5,
)


def _state(names: dict[int, str]) -> State:
    return dict(sorted(row(number, name, '{"n": 1}') for number, name in names.items()))


@settings(max_examples=examples(60))
@given(
    states=_STATES,
    parts=st.integers(1, 9),
    format_id=st.sampled_from(FORMATS),
    wanted=st.sampled_from([None, ["id"], ["name"], ["doc"], ["id", "name"], ["name", "doc"]]),
    is_compiled=st.booleans(),
)
def test_every_boundary_in_any_number_of_ranges(
    tmp_path_factory: pytest.TempPathFactory,
    *,
    states: list[tuple[dict[int, str], bool]],
    parts: int,
    format_id: str,
    wanted: list[str] | None,
    is_compiled: bool,
) -> None:
    directory = tmp_path_factory.mktemp("archive")
    builder = Builder(directory, formats=("jsonl", "protobuf"), base_formats=FORMATS)
    builder.base(10, _state(states[0][0]))
    for number, (names, truncate) in enumerate(states[1:], 2):
        builder.diff(number * 10, _state(names), truncate=truncate)
    table = Table(builder.write(), format_id, wanted)
    with pytest.MonkeyPatch.context() as patch:
        if not is_compiled:
            patch.setattr(struct_reader, "module", None)
        for boundary, state in zip(table.archive.boundaries, builder.states, strict=True):
            reads = table.plan(boundary, parts)
            assert 1 <= len(reads) <= max(parts, 2)
            found = [line for read in reads for line in table.rows(read)]
            assert in_order(found) == in_order(truth(state, wanted))
            for key, line in list(state.items())[:3]:
                one = key_ranges.cut(boundary, table.choose, key_ranges.of_key(key))
                assert table.rows(one) == truth({key: line}, wanted)


@pytest.fixture(params=["jsonl", "parquet"])
def wide(tmp_path: Path, request: pytest.FixtureRequest) -> Table:
    """A base of many blocks, and a diff with some."""
    many = {number: f"name {number}" for number in range(1000, 2000)}
    builder = Builder(tmp_path, base_formats=(request.param,)).base(10, _state(many))
    builder.diff(20, _state({**many, **dict.fromkeys(range(1000, 2000, 50), "new")}))
    return Table(builder.write(), request.param)


def test_no_byte_of_the_base_is_read_twice(wide: Table) -> None:
    reads = wide.plan(wide.archive.boundary(), 8)
    assert wide.format_id == "parquet" or len(reads) == 8
    bases = [read.base for read in reads if read.base is not None]
    assert [base.start for base in bases[1:]] == [base.stop for base in bases[:-1]]
    sizes = [base.size_bytes for base in bases]
    assert sum(sizes) == bases[0].entry.size_bytes
    # A parquet file of groups as small as these is mostly its footer.
    assert wide.format_id == "parquet" or max(sizes) < 2 * min(sizes)


def test_of_a_parquet_base_one_row_group_is_fetched_for_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "SNAPSHOT_BLOCK", 200_000)
    noise = {n: random.Random(n).randbytes(500).hex() for n in range(1000, 9000)}
    table = Table(Builder(tmp_path, base_formats=("parquet",)).base(10, _state(noise)).write())
    read = key_ranges.cut(table.archive.boundary(), table.choose, key_ranges.of_key(b"5000"))
    assert [line["name"] for line in table.rows(read)] == [noise[5000]]
    assert read.base is not None
    assert table.bytes_read < read.base.size_bytes + 200_000 < read.base.entry.size_bytes / 10


def test_one_key_is_a_small_part_of_the_files(wide: Table) -> None:
    boundary = wide.archive.boundary()
    read = key_ranges.cut(boundary, wide.choose, key_ranges.of_key(b"1500"))
    whole = sum(wide.choose(artifact)[1].size_bytes for artifact in boundary.artifacts)
    assert read.size_bytes < whole / 20
    assert [line["name"] for line in wide.rows(read)] == ["new"]
    assert wide.rows(key_ranges.cut(boundary, wide.choose, key_ranges.of_key(b"1500x"))) == []


def test_after_a_truncate_no_base_is_read(tmp_path: Path) -> None:
    many = _state(dict.fromkeys(range(100), "x"))
    builder = Builder(tmp_path).base(10, many).diff(20, _state({5: "y"}), truncate=True)
    table = Table(builder.write())
    [read] = table.plan(table.archive.boundary(), 4)
    assert read.base is None
    assert [line["id"] for line in table.rows(read)] == [5]


def test_files_without_splits_keep_the_number_of_ranges_small(tmp_path: Path) -> None:
    names = dict.fromkeys(range(100, 200), "x")
    builder = Builder(tmp_path).base(10, _state(names))
    for number in range(2, 90):
        names[100 + number] = f"x{number}"
        builder.diff(number * 10, _state(names))
    table = Table(builder.write())
    reads = table.plan(table.archive.boundary(), 50)
    whole = sum(table.choose(a)[1].size_bytes for a in table.archive.boundary().artifacts)
    assert 2 <= len(reads) < 10
    assert sum(read.size_bytes for read in reads) < 3 * whole


def test_a_slice_of_splits_that_dont_ascend_is_empty() -> None:
    entry = FormatEntry("u", 200, "k", splits=(("a", 0), ("m", 100), ("p", 50)))
    part = key_ranges.narrowed(ObjectSlice("jsonl", entry), KeyRange(b"m", b"p"))
    assert part.size_bytes == 0


def test_changes_of_few_keys_are_read_by_several(tmp_path: Path) -> None:
    """No range has more than its share, though none of the base's blocks has all of the changes."""
    names = dict.fromkeys(range(1000, 2000), "x" * 80)
    builder = Builder(tmp_path).base(10, _state(names))
    for number in range(20):
        names |= dict.fromkeys(range(1500, 1510), f"{number:080}")
        builder.diff(20 + 10 * number, _state(names))
    table = Table(builder.write())
    boundary = table.archive.boundary()
    base, *diffs = [table.choose(artifact)[1].size_bytes for artifact in boundary.artifacts]
    assert sum(diffs) < base
    reads = table.plan(boundary, 8)
    assert len(reads) == 8
    assert max(read.size_bytes for read in reads) < 2.5 * (base + sum(diffs)) / 8
    found = [line for read in reads for line in table.rows(read)]
    assert in_order(found) == in_order(truth(builder.states[-1]))


def test_long_values_of_diffs_come_in_small_batches(tmp_path: Path) -> None:
    names = {number: str(number) * 200_000 for number in range(1000, 1040)}
    builder = Builder(tmp_path).base(10, _state({})).diff(20, _state(names))
    table = Table(builder.write())
    boundary = table.archive.boundary()
    read = key_ranges.cut(boundary, table.choose, key_ranges.KeyRange())
    made = list(batches(read, table.reader, COLUMNS, table.open_slice))
    assert sum(batch.num_rows for batch in made) == 40
    assert max(batch.nbytes for batch in made) < 6_000_000


def test_a_file_that_is_cut_off_is_an_error(wide: Table) -> None:
    entry = wide.choose(wide.archive.boundary().base)[1]
    path = Path(wide.archive.found.destination.uri.removeprefix("file://")) / entry.key
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(BadBytes, match="the file ends"):
        for read in wide.plan(wide.archive.boundary(), 8):
            wide.rows(read)


def test_unsorted_artifacts_have_no_ranges(tmp_path: Path) -> None:
    state = _state(dict.fromkeys(range(100), "x"))
    table = Table(Builder(tmp_path, shuffled=True).base(10, state).write())
    assert not key_ranges.is_sorted(table.archive.boundary(), table.choose)
    assert key_ranges.is_sorted(
        Table(Builder(tmp_path, prefix="b/").base(10, state).write()).archive.boundary(),
        table.choose,
    )
