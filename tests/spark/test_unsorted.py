"""Archives that others wrote: without order, columns, checksums; each read is the table."""

import json
from collections import Counter
from dataclasses import replace
from hashlib import md5
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import SparkSession

from laredo_archive.codec import jsonl
from laredo_archive.read.artifact_reader import ArtifactDamaged
from laredo_archive.reader import Archive
from laredo_spark import read_table
from laredo_spark.errors import KeyMissing, TypesUnfit
from laredo_spark.options import parse
from laredo_spark.read import unfolded_reader, unsorted
from laredo_spark.read.table_read import TableRead
from laredo_spark.read.unfolded_reader import ACTION, DELETE, KEY, ORDER, PUT, TRUNCATE
from tests.support import drawn
from tests.support.archive.building import COLUMNS, Builder, State, row
from tests.support.spark_reading import Reading, names

FIRST = {number: f"name {number}" for number in range(100)}
SECOND = {**FIRST, 7: "changed", 200: "new"}
del SECOND[50]


@pytest.fixture(params=["jsonl", "protobuf"])
def format_id(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def other_writers(directory: Path, format_id: str = "jsonl") -> Builder:
    builder = Builder(directory, plain=True, shuffled=True, formats=(format_id,))
    return builder.base(0x10, names(FIRST)).diff(0x20, names(SECOND))


def test_one_task_folds_it(tmp_path: Path, format_id: str) -> None:
    builder = other_writers(tmp_path, format_id).diff(0x30, names({1: "alone"}), truncate=True)
    archive = builder.write()
    for position, state in ((0x10, FIRST), (0x20, SECOND), (0x30, {1: "alone"})):
        found = Reading(archive, as_of=f"0/{position:X}").rows()
        assert {line["id"]: line["name"] for line in found} == state
    assert Reading(archive, as_of="0/20", key="200").ids() == [200]


def test_columns_are_what_the_first_rows_show(tmp_path: Path, format_id: str) -> None:
    made = Reading(other_writers(tmp_path, format_id).write(), mode="base")
    assert (
        made.schema.simpleString()
        == (
            # The protobuf of other writers has its columns in the order of their names.
            "struct<id:bigint,name:string,doc:string,"
            if format_id == "jsonl"
            else "struct<doc:string,id:bigint,name:string,"
        )
        + f"{KEY}:string,{ORDER}:bigint,{ACTION}:tinyint>"
    )
    assert sorted(line["id"] for line in made.rows()) == list(FIRST)


def test_diffs_as_they_stand(tmp_path: Path, format_id: str) -> None:
    builder = other_writers(tmp_path, format_id).diff(0x30, names({1: "alone"}), truncate=True)
    found = Reading(builder.write(), mode="diffs").rows()
    by_order = sorted(found, key=lambda line: line[ORDER])
    assert {(line[KEY], line[ACTION]) for line in by_order[:3]} == {
        ("7", PUT),
        ("50", DELETE),
        ("200", PUT),
    }
    assert [(line[KEY], line[ACTION]) for line in by_order[3:]] == [(None, TRUNCATE), ("1", PUT)]


@pytest.mark.parametrize("plain", [True, False], ids=["not said", "said"])
def test_truncations_are_only_searched_where_the_manifest_doesnt_say(
    spark: SparkSession, tmp_path: Path, plain: bool
) -> None:
    builder = Builder(tmp_path, plain=plain, shuffled=True).base(0x10, names(FIRST))
    builder.diff(0x20, names({1: "alone"}), truncate=True).diff(0x30, names({1: "a", 2: "b"}))
    found = read_table(spark, str(builder.write()))
    assert {row.id: row["name"] for row in found.collect()} == {1: "a", 2: "b"}
    assert ("__laredo_last" in found._jdf.queryExecution().toString()) == plain  # type: ignore[operator]


LINES = [
    {
        "id": 1,
        "n": 1,
        "f": 1,
        "b": True,
        "s": "a",
        "j": {"x": [1]},
        "m": 1,
        "z": None,
        "big": 2**70,
    },
    {"id": 2, "n": None, "f": 1.5, "b": False, "s": "2", "j": "text", "m": "one", "z": None},
]


def hand_made(directory: Path, lines: list[str], diff: list[str] | None = None) -> Path:
    """The files of a writer that knows nothing of ours."""
    artifacts: list[dict[str, Any]] = []
    for kind, name, text in (("snapshot", "s", lines), ("diff", "d", diff)):
        if text is None:
            continue
        file = directory / name
        file.write_bytes("\n".join(text).encode())
        artifacts.append(
            {
                "kind": kind,
                "epoch": 1,
                "from_position": None if kind == "snapshot" else "0/10",
                "to_position": "0/10" if kind == "snapshot" else "0/20",
                "created_at": "2026-06-03T21:40:11Z",
                "row_count" if kind == "snapshot" else "change_count": len([*filter(None, text)]),
                "formats": {
                    "jsonl": {"uri": file.as_uri(), "size_bytes": file.stat().st_size, "key": name}
                },
            }
        )
    manifest = {
        "manifest_version": 1,
        "table": "public.t",
        "epoch": 1,
        "updated_at": "2026-06-03T21:40:11Z",
        "head_position": "0/20",
        "artifacts": artifacts,
    }
    (directory / "manifest.json").write_text(json.dumps(manifest))
    return directory


def test_each_kind_of_value(tmp_path: Path) -> None:
    archive = hand_made(tmp_path, [json.dumps(line) for line in LINES])
    made = Reading(archive)
    assert made.schema.simpleString() == (
        "struct<id:bigint,n:bigint,f:double,b:boolean,s:string,j:string,m:string,z:string,"
        "big:string>"
    )
    first, second = sorted(made.rows(), key=lambda line: line["id"])
    assert list(first.values()) == [1, 1, 1.0, True, "a", '{"x":[1]}', "1", None, str(2**70)]
    assert list(second.values()) == [2, None, 1.5, False, "2", '"text"', "one", None, None]


def test_lines_with_blanks_other_orders_and_missing_columns(tmp_path: Path) -> None:
    base = ['{"id": 1, "a": "x y", "b": null}', "", '{"b" : 2 ,"id":2}', '{"id":3,"a":null}', ""]
    diff = ['{"action":"UPDATE","key":"2","old":{"id":2},"new":{"a": "é", "id": 2}}']
    archive = hand_made(tmp_path, base, diff)
    expected = [
        {"id": 1, "a": "x y", "b": None},
        {"id": 2, "a": "é", "b": None},
        {"id": 3, "a": None, "b": None},
    ]
    assert sorted(Reading(archive).rows(), key=lambda line: line["id"]) == expected
    for mode, count in (("base", 3), ("diffs", 1)):
        found = Reading(archive, mode=mode).rows()
        assert len(found) == count
        assert {line["id"]: line["a"] for line in found}[2] == (None if mode == "base" else "é")


def test_lines_as_they_stand(tmp_path: Path) -> None:
    base = ['{"id": 1, "a": "x y"}', '{"b":2,"id":2}']
    found = Reading(hand_made(tmp_path, base), lines="true", mode="base").rows()
    assert [(line[KEY], line["line"]) for line in found] == [("1", base[0]), ("2", base[1])]


def test_columns_that_only_a_diff_has(tmp_path: Path) -> None:
    diff = ['{"action":"INSERT","key":"2","new":{"id":2,"later":true}}']
    archive = hand_made(tmp_path, ['{"id":1}'], diff)
    found = sorted(Reading(archive).rows(), key=lambda line: line["id"])
    assert found == [{"id": 1, "later": None}, {"id": 2, "later": True}]


def test_a_row_that_doesnt_fit_says_how_to_look_at_more(tmp_path: Path) -> None:
    lines = [f'{{"id":{n},"n":1}}' for n in range(20)]
    archive = hand_made(tmp_path, [*lines, '{"id":99,"n":1.5}'])
    for mode in ("table", "base"):
        with pytest.raises(TypesUnfit, match=r"column n: 1.5.*20 rows.*infer_rows"):
            Reading(archive, infer_rows=20, mode=mode).rows()
    archive = hand_made(tmp_path, [*lines, '{"id":99,"n":1,"extra":1}'])
    with pytest.raises(
        TypesUnfit, match=r"file:.*: no row that types were inferred from has extra"
    ):
        Reading(archive, infer_rows=20, mode="base").rows()
    assert len(Reading(archive, infer_rows=21).rows()) == 21


def test_the_key_is_id_or_as_said(tmp_path: Path) -> None:
    base = ['{"k":1,"l":"a","v":1}', '{"k":1,"l":"b","v":1}']
    diff = ['{"action":"UPDATE","key":"[1,\\"b\\"]","new":{"k":1,"l":"b","v":2}}']
    archive = hand_made(tmp_path, base, diff)
    with pytest.raises(ArtifactDamaged, match="key_fields"):
        Reading(archive).rows()
    found = Reading(archive, key_fields="k,l").rows()
    assert {line["l"]: line["v"] for line in found} == {"a": 1, "b": 2}
    with pytest.raises(ArtifactDamaged, match='no key column "x"'):
        Reading(archive, key_fields="x")


def test_two_rows_of_a_base_with_one_key_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """No diff says which of them it means; laredo-archive refuses them too."""
    archive = other_writers(tmp_path).write()
    file = next(Path(tmp_path).rglob("snapshot-*.jsonl"))
    file.write_bytes(file.read_bytes().replace(b'{"id":8,', b'{"id":9,').replace(b"name 8", b"ten"))
    manifest = json.loads((archive / "manifest.json").read_text())
    manifest["artifacts"][0]["formats"]["jsonl"]["size_bytes"] = file.stat().st_size
    (archive / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(SparkRuntimeException, match="two rows of its base have the key 9"):
        read_table(spark, str(archive)).count()


def test_a_large_file_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the pieces end, each line is read once."""
    lines = [f'{{"id":{n},"s":"{"x" * (n % 13)}"}}' for n in range(60)]
    archive = hand_made(tmp_path, lines)
    whole = Archive.at(str(archive)).boundary().base.formats["jsonl"].size_bytes
    for number, size in enumerate([*range(9, 60, 3), whole - 1, whole, whole + 1]):
        monkeypatch.setattr(unfolded_reader, "TASK_BYTES", size)
        monkeypatch.setattr(unfolded_reader, "_BLOCK_BYTES", size % 17 + 1 if number % 2 else 4096)
        made = Reading(archive, mode="base")
        assert len(made.partitions()[1]) == -(-whole // size)
        assert made.ids() == list(range(60))


def test_damage_within_a_slice_of_a_large_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "SNAPSHOT_BLOCK", 500)
    monkeypatch.setattr(unfolded_reader, "TASK_BYTES", 2000)
    archive = Builder(tmp_path).base(0x10, names(dict.fromkeys(range(300), "x"))).write()
    made = Reading(archive, mode="base")
    assert sorted(made.ids()) == list(range(300)) and len(made.partitions()[1]) > 2
    file = next(tmp_path.rglob("snapshot-*.jsonl"))
    file.write_bytes(file.read_bytes().replace(b'"id":150,"name":"x"', b'"id":150,"name":"y"'))
    with pytest.raises(ArtifactDamaged):
        made.ids()


def test_a_task_gets_no_splits(tmp_path: Path) -> None:
    state = names(dict.fromkeys(range(3000), "x" * 900))
    archive = Builder(tmp_path).base(0x10, {}).diff(0x20, state).write()
    assert Archive.at(str(archive)).boundary().diffs[0].formats["jsonl"].splits
    [task] = Reading(archive, mode="diffs").partitions()[1]
    assert [(one.part.entry.splits, one.part.entry.blocks) for one in task.parts] == [((), ())]


def test_many_small_diffs_are_a_few_tasks(tmp_path: Path) -> None:
    builder = Builder(tmp_path, shuffled=True).base(0x10, names(FIRST))
    state = dict(FIRST)
    for number in range(40):
        state[number] = "changed"
        builder.diff(0x20 + number, names(state))
    made = Reading(builder.write(), mode="diffs")
    assert 2 <= len(made.partitions()[1]) <= 3
    assert len(made.rows()) == 40


# ``read_table`` of tables without a key: equal rows are as many as the table has.


KEYLESS = tuple(replace(column, key_ordinal=None) for column in COLUMNS)


def table(*ids_in: int) -> State:
    """One row for each; equal ones come several times."""
    found: State = {}
    numbers: Counter[bytes] = Counter()
    for number in ids_in:
        _, line = row(number, f"name {number}")
        numbers[line] += 1
        found[b"%b-%010d" % (md5(line).hexdigest().encode(), numbers[line])] = line
    return dict(sorted(found.items()))


def builder(directory: Path, **more: tuple[str, ...]) -> Builder:
    return Builder(directory, "log/", columns=KEYLESS, key_fields=(), **more)


def ids_in(
    spark: SparkSession, archive: Path, as_of: str | None = None, **given: object
) -> list[int]:
    found = read_table(spark, str(archive), as_of, **given)
    return sorted(row.id for row in found.collect())


@pytest.mark.parametrize("format_id", drawn.first(1, ["protobuf", "jsonl", "parquet"]))
def test_at_every_boundary(spark: SparkSession, tmp_path: Path, format_id: str) -> None:
    made = builder(
        tmp_path, formats=("jsonl", "protobuf"), base_formats=("jsonl", "protobuf", "parquet")
    )
    made.base(0x10, table(1, 1, 2)).diff(0x20, table(1, 1, 1, 2, 3))
    made.diff(0x30, table(5, 5), truncate=True).diff(0x40, table(5, 5, 5, 6))
    archive = made.write()
    asked = (
        [("0/20", [1, 1, 1, 2, 3]), ("0/40", [5, 5, 5, 6])],
        [("0/10", [1, 1, 2]), ("0/30", [5, 5])],
    )
    for as_of, expected in chain(*drawn.in_turn(asked, 0)):
        assert ids_in(spark, archive, as_of, format=format_id, verify=True) == expected
    found = read_table(spark, str(archive), columns=["name"])
    assert found.columns == ["name"] and found.count() == 4
    with pytest.raises(KeyMissing):
        read_table(spark, str(archive), key="1")


@drawn.seeds(1, 10)
def test_rows_that_go_and_come_again(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    """No append_only table's writer makes such a diff; what it says holds all the same."""
    chance, made = Random(seed), builder(tmp_path)
    made.base(0x10, table(*chance.choices(range(4), k=chance.randrange(10))))
    for position in (0x20, 0x30, 0x40):
        made.diff(position, table(*chance.choices(range(4), k=chance.randrange(10))))
    archive = made.write()
    expected = sorted(int(line[6:7]) for line in made.states[-1].values())
    assert ids_in(spark, archive, verify=True) == expected


def test_the_manifest_shows_that_there_are_only_inserts(tmp_path: Path) -> None:
    made = builder(tmp_path).base(0x10, table(1, 1)).diff(0x20, table(1, 1, 2))
    made.diff(0x30, table(1, 2)).diff(0x40, table(3), truncate=True).diff(0x50, table(3, 3))
    archive = made.write()

    def inserts(as_of: str) -> bool:
        given = {"path": str(archive), "as_of": as_of}
        return unsorted.only_inserts(TableRead.of(parse(given)).boundary)

    assert [inserts(f"0/{end}") for end in (10, 20, 30, 40, 50)] == [True, True, False, True, True]
