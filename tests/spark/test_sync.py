"""The plan of a sync, and its messages; tests/spark/delta and tests/spark/iceberg have targets."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

from laredo_model.column import Column
from laredo_spark import options
from laredo_spark.read.table_read import TableRead
from laredo_spark.sync import merging
from laredo_spark.sync.errors import OlderThanTarget, SyncFailed, TargetRefused
from laredo_spark.sync.merging import Merge, Rebuild, SyncAction, SyncState, UpToDate
from laredo_spark.sync.spark import failing_as, own_session
from tests.spark.merged_copy import MergedCopy
from tests.support.archive.building import HISTORY, Builder, State
from tests.support.spark_reading import names

FIRST = {number: f"name {number}" for number in range(10)}


class Planned:
    """An archive, and the state of a target that was synced from it."""

    def __init__(self, builder: Builder) -> None:
        self.archive = builder
        self.held = merging.next_state(None, self.table())

    def table(self, **given: str) -> TableRead:
        return TableRead.of(options.parse({"path": str(self.archive.write()), **given}))

    def step(self, **given: str) -> SyncAction:
        step = merging.step(
            "the target", self.held, None, self.table(**given), lambda: True, rebuild=False
        )
        self.held = merging.next_state(self.held, self.table(**given))
        return step


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    return Planned(Builder(tmp_path / "archive").base(0x10, names(FIRST)))


def test_a_plan_goes_on_through_epochs(planned: Planned) -> None:
    archive = planned.archive
    archive.diff(0x20, names({1: "a"})).base(0x20, names({1: "a"})).diff(0x30, names({1: "b"}))
    assert isinstance(planned.step(), Merge) and planned.held.epoch == 2
    # Retention removes the epochs before; the target was up to date, and goes on without them.
    archive.base(0x30, names({1: "b"}))
    assert isinstance(planned.step(), UpToDate)
    archive.artifacts = archive.artifacts[-1:]
    archive.diff(0x40, names({1: "c"}))
    assert isinstance(planned.step(), Merge)
    # The epoch goes on over a failover.
    archive.history = HISTORY.replace(":1:", ":2:")
    archive.diff(0x48, names({1: "e"}))
    assert isinstance(planned.step(), Merge)
    archive.diff(0x50, names({1: "d"}), truncate=True)
    assert planned.step() == Rebuild("the table was truncated")


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("gap", "epoch 2 doesn't continue"),
        ("history", "new history"),
        ("retention", "no longer has the boundary"),
        ("options", "options for them, have changed"),
    ],
)
def test_a_plan_to_rebuild(planned: Planned, why: str, reason: str) -> None:
    archive = planned.archive
    if why == "history":
        archive.history = HISTORY.replace(":1:", ":2:")
    archive.base(0x10 if why == "history" else 0x30, names({1: "a"}), continues=why == "retention")
    if why == "retention":
        archive.base(0x40, names({1: "b"}))
        archive.artifacts = archive.artifacts[-1:]
    step = planned.step(**({"special_values": "null"} if why == "options" else {}))
    assert isinstance(step, Rebuild) and reason in step.reason


def test_a_plan_for_an_archive_without_order_is_to_rebuild(tmp_path: Path) -> None:
    planned = Planned(Builder(tmp_path, plain=True, shuffled=True).base(0x10, names(FIRST)))
    planned.archive.diff(0x20, names({1: "a"}))
    assert planned.step(key_fields="id") == Rebuild("the archive's diffs aren't sorted by key")


def test_an_older_copy_and_another_table_are_refused(planned: Planned) -> None:
    held = planned.held
    planned.held = replace(held, position=type(held.position)(0x18))
    with pytest.raises(OlderThanTarget, match=r"is at 0/18 .*, and the archive .* ends at 0/10"):
        planned.step()
    planned.held = replace(held, history=HISTORY.replace(":1:", ":2:"))
    with pytest.raises(OlderThanTarget, match=r"history \d+:2:.*history \d+:1:"):
        planned.step()
    planned.held = replace(held, table="public.orders")
    with pytest.raises(TargetRefused, match=r"holds public.orders, .* is of public.users"):
        planned.step()


def test_a_state_with_files_of_earlier_programs_is_read(planned: Planned) -> None:
    earlier = {**planned.held.to_json(), "in_ranges": False, "built_rows": 0, "files": []}
    assert SyncState.parse(json.dumps(earlier)) == planned.held


def test_a_plan_for_a_key_with_a_float_is_to_rebuild(tmp_path: Path) -> None:
    key = Column("k", "float8", -1, False, 1, 1)
    planned = Planned(Builder(tmp_path, columns=(key,), key_fields=("k",)).base(0x10, {}))
    planned.archive.diff(0x20, {b"1.5": b'{"k":1.5}'})
    assert planned.step() == Rebuild("rows can't be distinguished by their key columns")


KEYS = {
    "int8": ["-5", "7", str(2**62)],
    "text": ["", 'a"b\\c', "é\U0001f600\n"],
    "numeric": ["1.0", "1.00", "12345678901234567890123456789012345678901.5"],
    "timestamptz": [
        "2024-02-29T10:00:00+00:00",
        "2024-02-29T10:00:00.000001+00:00",
        "1999-01-01T00:00:00+00:00",
    ],
    "bytea": ["\\x", "\\x00ff", "\\x5c"],
}


def test_net_changes_find_keys_of_several_columns(spark: SparkSession, tmp_path: Path) -> None:
    key = [Column(name, name, -1, False, at, at) for at, name in enumerate(KEYS, 1)]
    columns = (*key, Column("v", "int4", -1, False, len(key) + 1))

    def state(values: list[int | None]) -> State:
        found = {}
        for number, v in enumerate(values):
            texts = [json.dumps(each[number], ensure_ascii=False) for each in KEYS.values()]
            texts[0] = KEYS["int8"][number]
            line = ",".join(f'"{name}":{text}' for name, text in zip(KEYS, texts, strict=True))
            if v is not None:
                found[f"[{','.join(texts)}]".encode()] = f'{{{line},"v":{v}}}'.encode()
        return dict(sorted(found.items()))

    builder = Builder(tmp_path / "archive", columns=columns, key_fields=tuple(KEYS))
    copy = MergedCopy(spark, tmp_path / "copy")
    copy.sync(builder.base(0x10, state([1, 2, 3])).write())
    step = copy.sync(builder.diff(0x20, state([1, None, 4])).write())
    assert isinstance(step, Merge)
    assert sorted(row.v for row in copy.rows().collect()) == [1, 4]


def test_a_syncs_own_session_has_the_users_settings(spark: SparkSession) -> None:
    users = spark.newSession()
    users.conf.set("spark.sql.caseSensitive", "true")
    users.conf.set("spark.sql.catalog.lake.type", "rest")
    # SparkConf, which each new session begins with, has it.
    users.conf.unset("spark.sql.session.timeZone")
    wanted = users.conf.getAll
    # As a builder does with a session that is there.
    users._jconf.setConfString("spark.ui.showConsoleProgress", "false")
    before, active = users.conf.getAll, SparkSession.getActiveSession()
    with own_session(users) as own:
        assert own.conf.getAll == wanted != before
        own.conf.set("spark.sql.caseSensitive", "false")
        assert SparkSession.getActiveSession() is active
    assert users.conf.getAll == before and SparkSession.getActiveSession() is active


def test_what_a_worker_lacks_is_in_the_message(spark: SparkSession) -> None:
    def lacking(number: int) -> int:
        import no_such_module  # type: ignore[import-not-found]

        return int(no_such_module.of(number))

    task = F.udf(lacking, "int", useArrow=False)
    reason = "a Python worker failed: ModuleNotFoundError: No module named 'no_such_module'"
    refused = pytest.raises(SyncFailed, match=f"/target: {reason}. The target is unchanged")
    with refused, failing_as("/target"):
        spark.range(1).select(task("id")).collect()
