"""``open_archive``: tables and changes as Arrow, from every kind of archive.

The rows of golden archives are compared with the truth, which is written by hand;
tests/spark/test_postgres.py compares every type, at every boundary, with PostgreSQL.
"""

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import laredo_archive
from laredo_archive import (
    ArchivedTable,
    ArchiveError,
    ChangesBetween,
    TableAtBoundary,
    open_archive,
)
from laredo_archive.arrow import ranges, table
from laredo_archive.codec import jsonl, parquet, protobuf
from laredo_archive.codec.arrow.types import SpecialValue, TypeChoiceRefused
from laredo_archive.errors import (
    ArtifactDamaged,
    ArtifactMissing,
    ChangesLacking,
    NoSuchBoundary,
    NoSuchColumn,
    RowsUnfit,
)
from laredo_archive.reader import Archive
from laredo_model import position as positions
from laredo_model.column import Column
from tests.support import drawn
from tests.support.archive.building import START, Builder, State
from tests.support.archive.s3_archive import put, reached
from tests.support.archive.without_pyarrow import without_pyarrow
from tests.support.aws import REGION, AwsServer
from tests.support.faults.fault import Rule, answer
from tests.support.faults.proxy import FaultProxy
from tests.support.golden.truth import ARCHIVES, TRUTHS, Truth, position_of
from tests.support.spark_reading import names

MANY = {number: f"name {number}" for number in range(1000, 1400)}
CHANGED = {number: name for number, name in MANY.items() if number % 7} | {
    1001: "new",
    2000: "more",
}
FORMATS = ("jsonl", "protobuf", "parquet", "jsonl.zst", "protobuf.zst")
READABLE = [
    *("bare", "composite", "compressed", "epochs", "json", "keys", "merged", "mixed", "original"),
    *("originals_keys", "originals_windows", "people", "unsorted"),
]


def loaded(line: str, columns: pa.Schema) -> dict[str, Any]:
    """A line's values as Arrow has them, where types are simple: json as its text."""
    found = dict.fromkeys(columns.names)
    for name, value in json.loads(line).items():
        found[name] = value
    return found


def comparable(rows: list[dict[str, Any]]) -> list[str]:
    def plain(value: Any) -> Any:
        if isinstance(value, str):
            with suppress(ValueError):
                return datetime.fromisoformat(value).timestamp()
            with suppress(ValueError):
                value = json.loads(value)  # json columns; numbers that are text in diffs
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, list):
            return [plain(each) for each in value]
        if isinstance(value, float) and value.is_integer():
            return int(value)  # the type of all numbers in a column that isn't named
        return value

    return sorted(json.dumps({name: plain(each) for name, each in row.items()}) for row in rows)


@pytest.mark.parametrize("name", drawn.first(4, ["merged", "epochs", "original", *READABLE]))
def test_rows_at_every_boundary(name: str) -> None:
    truth = Truth(TRUTHS / name)
    found = open_archive(ARCHIVES / name)
    for boundary in truth.boundaries:
        position, epoch = position_of(boundary)
        at = found.at(position, exact=True, epoch=epoch)
        rows = at.to_arrow()
        assert rows.schema == at.schema
        assert at.count() == rows.num_rows == len(truth.lines(boundary))
        wanted = [loaded(line, at.schema) for line in truth.lines(boundary)]
        assert comparable(rows.to_pylist()) == comparable(wanted), boundary
        assert at.batches().read_all().num_rows == rows.num_rows


@pytest.mark.parametrize(
    "name", [truth.name for truth in map(Truth, TRUTHS.iterdir()) if truth.as_of]
)
def test_as_of_is_what_the_command_line_takes(name: str) -> None:
    truth, found = Truth(TRUTHS / name), open_archive(ARCHIVES / name)
    for asked in truth.as_of:
        options = {"exact": bool(asked.get("exact")), "epoch": asked.get("epoch")}
        if asked["gives"] is None:
            with pytest.raises(NoSuchBoundary):
                found.at(asked["as_of"], **options)
        else:
            at = found.at(asked["as_of"], **options)
            assert (at.position, at.epoch) == position_of(asked["gives"]), asked


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks and ranges small, so that small tables have several, for several threads."""
    for module in (jsonl, protobuf, parquet):
        monkeypatch.setattr(module, "SNAPSHOT_BLOCK", 2000)
    monkeypatch.setattr(jsonl, "DIFF_BLOCK", 500)
    monkeypatch.setattr(table, "RANGE_BYTES", 4000)
    monkeypatch.setattr(table, "ALONE_BYTES", 1000)
    monkeypatch.setattr(table, "_threads", lambda: 3)


def built(directory: Path, format_id: str = "jsonl") -> Path:
    diffs = "jsonl" if format_id == "parquet" else format_id
    builder = Builder(directory, formats=(diffs,), base_formats=(format_id,))
    return builder.base(0x10, names(MANY)).diff(0x20, names(CHANGED)).write()


def ids(rows: pa.Table) -> dict[int, str]:
    return dict(zip(rows["id"].to_pylist(), rows["name"].to_pylist(), strict=True))


@pytest.mark.parametrize("format_id", FORMATS)
def test_every_format_by_several_threads(small: None, tmp_path: Path, format_id: str) -> None:
    found = open_archive(built(tmp_path, format_id))
    assert ids(found.at("0/10").to_arrow()) == MANY
    assert list(found.at("0/10").to_arrow()["id"].to_pylist()) == sorted(MANY)
    assert ids(found.at().to_arrow()) == CHANGED
    assert found.count() == len(CHANGED) == found.at().batches().read_all().num_rows
    assert len(list(found.at().batches())) > 3
    assert found.at().to_arrow(["name"]).schema.names == ["name"]


def test_a_large_diff_without_splits_is_merged_as_a_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "DIFF_BYTES", 100)
    assert ids(open_archive(built(tmp_path)).at().to_arrow()) == CHANGED


def test_types_are_those_of_the_page() -> None:
    schema = open_archive(ARCHIVES / "types", array_dimensions={"grid": 0}).at("0/10").schema
    wanted = {
        "object": pa.int64(),
        "single": pa.float32(),
        "exact": pa.decimal128(20, 4),
        "unbounded": pa.string(),
        "day": pa.date32(),
        "zoned": pa.timestamp("us", "UTC"),
        "bytes": pa.binary(),
        "grid": pa.string(),
        "integers": pa.list_(pa.int32()),
    }
    assert {name: schema.field(name).type for name in wanted} == wanted
    assert all(field.nullable for field in schema)
    with pytest.raises(TypeChoiceRefused, match="numeric_as"):
        open_archive(ARCHIVES / "types", numeric_as="decimal(99,1)")
    with pytest.raises(TypeChoiceRefused, match='special_values = "none"'):
        open_archive(ARCHIVES / "types", special_values="none")


def test_a_value_without_a_place_in_its_type(small: None, tmp_path: Path) -> None:
    columns = (Column("id", "int8", -1, False, 1, 1), Column("day", "date", -1, True, 2))
    row = b'{"id":%d,"day":"%s"}'
    rows = {b"%d" % n: row % (n, b"2026-06-03") for n in range(1000, 1300)}
    rows[b"1250"] = row % (1250, b"infinity")
    archive = Builder(tmp_path, columns=columns).base(0x10, rows).write()
    with pytest.raises(SpecialValue, match=r"epoch=1/snapshot.*: column day: infinity"):
        open_archive(archive).at().to_arrow()
    assert open_archive(archive, special_values="null").at().to_arrow()["day"].null_count == 1
    assert open_archive(archive, special_values="string").schema.field("day").type == pa.string()


def test_a_boundary_is_chosen_by_position_number_and_time(tmp_path: Path) -> None:
    found = open_archive(built(tmp_path))
    first, last = found.boundaries()
    assert (first.position, first.epoch, first.count()) == ("0/10", 1, len(MANY))
    assert last.time == START + timedelta(seconds=0x20) and last.history is not None
    wanted = [("0/1F", first), (0x1F, first), (first.time, first), (None, last)]
    wanted += [(last.time.isoformat(), last), (positions.parse("0/20"), last)]
    for as_of, expected in wanted:
        assert found.at(as_of).position == expected.position
    for wrong in ("yesterday", "0/5", "0/FFFF"):
        with pytest.raises(NoSuchBoundary):
            found.at(wrong)
    assert repr(last) == "<TableAtBoundary public.users at 0/20 (epoch 1)>"
    assert repr(found) == f"<ArchivedTable public.users in {found.uri}>"


def test_an_archive_is_read_again_when_asked(tmp_path: Path) -> None:
    builder = Builder(tmp_path).base(0x10, names(MANY))
    found = open_archive(builder.write())
    builder.diff(0x20, names(CHANGED)).write()
    assert found.at().position == "0/10" and found.refreshed().at().position == "0/20"


def test_boundaries_inside_of_merged_diffs() -> None:
    found = open_archive(ARCHIVES / "merged")
    listed = [each.position for each in found.boundaries()]
    inside = Truth(TRUTHS / "merged").boundaries
    assert len(listed) < len(inside)
    for boundary in inside:
        assert found.at(position_of(boundary)[0], exact=True).position == position_of(boundary)[0]
    assert [each.position for each in found.boundaries()] == listed
    assert len(set(found.changes().to_arrow()["position"].to_pylist())) > len(listed)


def test_a_table_without_a_key(tmp_path: Path) -> None:
    columns = (Column("id", "int8", -1, True, 1), Column("name", "text", -1, True, 2))
    line = b'{"id":1,"name":"twice"}'
    key = b"85c46f105479740f860b9a4fe7e0bb51"
    archive = Builder(tmp_path, columns=columns, key_fields=())
    archive.base(0x10, {}).diff(0x20, {key + b"-%010d" % n: line for n in (1, 2)})
    found = open_archive(archive.write())
    assert found.at().to_arrow().to_pylist() == [{"id": 1, "name": "twice"}] * 2
    assert found.changes().to_arrow().num_rows == 2


CHANGES = ["people", "merged", "composite", "compressed", "unsorted", "keys"]


@pytest.mark.parametrize("name", drawn.first(2, CHANGES))
def test_changes_lead_from_boundary_to_boundary(name: str) -> None:
    truth, found = Truth(TRUTHS / name), open_archive(ARCHIVES / name)
    ends = [position_of(boundary)[0] for boundary in truth.boundaries]
    made = found.changes(ends[0])
    rows = made.to_arrow()
    assert rows.schema == made.schema == made.batches().schema
    state: dict[str, Any] = {
        key: loaded(line, found.schema) for key, line in truth.state(truth.boundaries[0]).items()
    }
    for boundary, end in zip(truth.boundaries[1:], ends[1:], strict=True):
        for change in rows.to_pylist():
            if change["position"] != end:
                continue
            if change["action"] == "TRUNCATE":
                state = {}
            elif change["new"] is None:
                del state[change["key"]]
            else:
                assert (change["old"] is None) == (change["action"] == "INSERT")
                state[change["key"]] = change["new"]
        wanted = [loaded(line, found.schema) for line in truth.lines(boundary)]
        assert comparable(list(state.values())) == comparable(wanted)


def test_changes_between_two_boundaries(tmp_path: Path) -> None:
    found = open_archive(built(tmp_path))
    assert found.changes("0/20").to_arrow().num_rows == 0
    rows = found.changes("0/10", "0/20").to_arrow()
    assert rows.num_rows == found.changes().to_arrow().num_rows
    net = Archive.at(str(tmp_path / "users"))
    wanted = list(net.changes(*net.boundaries).changes)
    assert rows["key"].to_pylist() == [change.key.decode() for change in wanted]
    assert rows["action"].to_pylist() == [change.action.name for change in wanted]
    with pytest.raises(NoSuchBoundary, match="is before 0/20"):
        found.changes("0/20", "0/10")
    with pytest.raises(ChangesLacking, match=r"no diffs lead from 0/140 .* changes were missed"):
        open_archive(ARCHIVES / "epochs").changes("0/140", "0/200")


def test_rows_that_the_inferred_types_do_not_fit(tmp_path: Path) -> None:
    rows: State = {b"%d" % n: b'{"id":%d,"n":%d}' % (n, n) for n in range(10, 20)}
    rows[b"20"] = b'{"id":20,"n":"text"}'
    archive = Builder(tmp_path, plain=True).base(0x10, rows).write()
    assert open_archive(archive).schema.field("n").type == pa.string()
    with pytest.raises(RowsUnfit, match="first 5 rows don't fit: column n"):
        open_archive(archive, infer_rows=5).at().to_arrow()


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NoSuchColumn, match="no column nme; the table's columns are id, name, doc"):
        open_archive(built(tmp_path)).at().batches(["nme"])


def test_damage_is_found_while_rows_are_read(small: None, tmp_path: Path) -> None:
    archive = built(tmp_path)
    file = next((archive / "epoch=1").glob("snapshot*"))
    data = file.read_bytes()
    file.write_bytes(data.replace(b"name 1390", b"name 1391"))
    with pytest.raises(ArtifactDamaged, match=f"{file.name}: the CRC-32"):
        open_archive(archive).at().to_arrow()
    file.write_bytes(data)
    manifest = json.loads((archive / "manifest.json").read_text())
    manifest["artifacts"][1]["rows"] += 1
    (archive / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactDamaged, match="rows, the manifest has"):
        open_archive(archive).at().to_arrow()
    file.unlink()
    with pytest.raises(ArtifactMissing, match=f"{file.name}: the manifest names"):
        open_archive(archive).at().batches().read_all()


def test_an_object_that_retention_removed(tmp_path: Path) -> None:
    builder = Builder(tmp_path).base(0x10, names(MANY))
    found = open_archive(builder.write()).at()
    builder.base(0x20, names(CHANGED))
    builder.artifacts.pop(0)
    archive = builder.write()
    next((archive / "epoch=1").glob("snapshot*")).unlink()
    with pytest.raises(ArtifactMissing, match="open the archive again"):
        found.to_arrow()


def test_who_stops_reading_leaves_no_thread(small: None, tmp_path: Path) -> None:
    reader = open_archive(built(tmp_path)).at().batches()
    reader.read_next_batch()
    del reader
    assert not [thread for thread in threading.enumerate() if thread.name == "key-range"]


def test_batches_wait_until_they_are_taken() -> None:
    """Threads don't read ahead of a consumer without bound."""
    batch, made = pa.record_batch({"id": [1]}), []

    def read(part: int) -> Iterator[pa.RecordBatch]:
        for _ in range(100):
            made.append(part)
            yield batch

    found = ranges.in_parallel([1, 2, 3, 4], read, 2)
    for _ in range(10):
        next(found)
    assert len(made) <= 10 + 2 * 2 + 2
    found.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("format_id", drawn.first(1, ["jsonl", "parquet", "protobuf.zst"]))
def test_from_s3(small: None, tmp_path: Path, moto: AwsServer, format_id: str) -> None:
    bucket = put(moto, built(tmp_path, format_id))
    found = open_archive(f"s3://{bucket}/lake/users/", **reached(moto))  # type: ignore[arg-type]
    assert ids(found.at("0/10").to_arrow()) == MANY
    assert ids(found.at().batches().read_all()) == CHANGED
    assert found.changes().to_arrow().num_rows > 0


OF_A_LIBRARY = """
import sys
from laredo_archive import open_archive
archive = open_archive(sys.argv[1], endpoint=sys.argv[2], region=sys.argv[3], addressing="path")
assert archive.at().to_arrow().num_rows == archive.count()
assert "laredo_archive.storage.s3.requests" in sys.modules
print(sorted({"rich", "structlog"} & set(sys.modules)), file=sys.stderr)
"""


def test_a_retry_prints_nothing_in_the_program_of_others(tmp_path: Path, moto: AwsServer) -> None:
    """A program that has set up no logs gets none, and nothing is imported for them."""
    bucket = put(moto, built(tmp_path))
    with FaultProxy(moto.endpoint) as proxy:
        rule = Rule(answer(503, "SlowDown"), operation="GetObject")
        proxy.add(rule)
        place = [f"s3://{bucket}/lake/users/", proxy.endpoint, REGION]
        done = subprocess.run(
            [sys.executable, "-c", OF_A_LIBRARY, *place],
            capture_output=True,
            text=True,
            check=False,
        )
    assert rule.happened == 1
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "[]\n")


def test_the_public_names() -> None:
    assert sorted(laredo_archive.__all__) == [
        "ArchiveError",
        "ArchivedTable",
        "ChangesBetween",
        "TableAtBoundary",
        "open_archive",
    ]
    public = {
        ArchivedTable: [
            *("at", "boundaries", "changes", "count", "name", "refreshed", "schema", "uri"),
        ],
        TableAtBoundary: [
            *("batches", "count", "epoch", "history", "position", "schema", "time", "to_arrow"),
        ],
        ChangesBetween: ["batches", "schema", "to_arrow"],
    }
    for each, wanted in public.items():
        assert [name for name in dir(each) if not name.startswith("_")] == wanted
    assert issubclass(NoSuchColumn, ArchiveError)
    with pytest.raises(AttributeError, match="no attribute 'Archive'"):
        _ = laredo_archive.Archive


def test_without_pyarrow_the_error_says_what_to_install() -> None:
    program = (
        "try:\n    from laredo_archive import open_archive\n"
        "except ImportError as missing:\n    print(missing)\n"
    )
    printed = without_pyarrow(program)
    assert printed == "pyarrow isn't installed: pip install 'laredo-snapshotter[parquet]'\n"


FOUR = {"orjson", "pyarrow", "zlib_ng", "zstandard"}
"""Packages that docs/readers.md has a reader install."""
WITH_FOUR = """
import sys
allowed = {*sys.stdlib_module_names, "laredo_archive", "laredo_model", "laredo_service", %r}
class Refusing:
    def find_spec(self, name, *more):
        package = name.partition(".")[0]
        if package not in allowed and not package.startswith("_"):
            raise ModuleNotFoundError(f"{name} isn't installed", name=name)
sys.meta_path.insert(0, Refusing())
from laredo_archive import open_archive
archive = open_archive(%r)
assert archive.at().to_arrow().num_rows == archive.count()
assert archive.at().batches().read_all().num_rows == archive.count()
assert archive.changes().to_arrow().num_rows
"""


@pytest.mark.parametrize("format_id", ["jsonl", "parquet", "jsonl.zst"])
def test_four_packages_are_enough(tmp_path: Path, format_id: str) -> None:
    archive = str(built(tmp_path, format_id))
    program = WITH_FOUR.replace("%r}", f"*{sorted(FOUR)}}}") % archive
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_an_empty_queue_in_a_reader_is_a_failure_like_any_other() -> None:
    def read(_: int) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"id": [1]})
        raise queue.Empty

    with pytest.raises(queue.Empty):
        list(ranges.in_parallel([1, 2], read, 2))
