"""``readStream``: each change once, whatever is re-based or restarted meanwhile."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from laredo_archive.reader import Archive
from laredo_model import position as positions
from laredo_model.column import Column
from laredo_spark.changes.stream import ChangesStreamReader, Offset
from laredo_spark.errors import (
    ArchiveBehind,
    BoundaryGone,
    ChangesGone,
    CheckpointOfOther,
    ColumnsChanged,
    OffsetUnreadable,
    OptionRefused,
    own_message,
)
from tests.spark.change_stream import FIRST, Stream, latest, reader
from tests.spark.simple_archive import (
    AT_20,
    AT_30,
    AT_40,
    FOUR,
    ONE,
    SNAPSHOT_30,
    THREE,
    TWO,
    simple,
)
from tests.support import drawn
from tests.support.archive.building import COLUMNS, HISTORY, Builder
from tests.support.processes import wait_until
from tests.support.spark_reading import Reading, manifest_of, names
from tests.support.writer.served import Served, State, put, serving
from tests.support.writer.writing import ReadyWriter


def at(position: str, epoch: int) -> Offset:
    return {"position": position, "epoch": epoch, "history": HISTORY, "table": "public.users"}


def actions(made: ChangesStreamReader, start: Offset, end: Offset) -> list[tuple[str, str | None]]:
    """Actions and keys of a batch."""
    found: list[tuple[str, str | None]] = []
    for task in made.partitions(start, end):
        for batch in made.read(task):
            found += zip(batch["action"].to_pylist(), batch["key"].to_pylist(), strict=True)
    return found


def test_the_first_batch_only_puts_down_where_it_begins(tmp_path: Path) -> None:
    made = reader(simple(tmp_path).write(), after="head")
    assert made.initialOffset() == FIRST
    assert latest(made, FIRST) == at("0/40", 2)
    assert actions(made, FIRST, at("0/40", 2)) == []
    assert made.reportLatestOffset() == at("0/40", 2)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, at("0/10", 1)),
        ({"after": "0/2F"}, at("0/20", 1)),
        ({"after": "0/30"}, at("0/30", 2)),
        ({"on_gap": "snapshot"}, at("", 1)),
    ],
)
def test_where_it_begins(tmp_path: Path, options: dict[str, str], expected: Offset) -> None:
    assert latest(reader(simple(tmp_path).write(), **options), FIRST) == expected


def test_an_idle_table_gives_the_same_offset(tmp_path: Path) -> None:
    made = reader(simple(tmp_path).write())
    head = latest(made, at("0/10", 1))
    assert head == at("0/40", 2)
    assert latest(made, head) is head
    assert made.partitions(head, head) == []


def test_some_diffs_at_a_time(tmp_path: Path) -> None:
    made = reader(simple(tmp_path).write(), max_diffs_per_trigger="1")
    assert made.getDefaultReadLimit() == ReadMaxFiles(1)
    assert latest(made, at("0/10", 1)) == at("0/20", 1)
    # The base that follows has no rows, so the offset goes through it.
    assert latest(made, at("0/20", 1)) == at("0/30", 2)
    assert latest(made, at("0/30", 2)) == at("0/40", 2)
    assert made.latestOffset(at("0/10", 1), ReadAllAvailable()) == at("0/40", 2)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_diffs_per_trigger": "1"}, ["0/10", "0/20", "0/30", "0/40"]),
        ({}, ["0/10", "0/40"]),
        ({"after": "head"}, ["0/40"]),
    ],
)
def test_what_is_available_now_ends_there(
    tmp_path: Path, options: dict[str, str], expected: list[str]
) -> None:
    builder = simple(tmp_path)
    made = reader(builder.write(), **options)
    made.prepareForTriggerAvailableNow()
    builder.diff(0x50, ONE).base(0x60, ONE, continues=False).write()
    offset, seen = FIRST, []
    while (following := latest(made, offset)) != offset:
        seen.append(following)
        offset = following
    assert [mark["position"] for mark in seen] == expected


def test_a_batch_that_was_planned_is_the_same_after_a_re_base(tmp_path: Path) -> None:
    builder = Builder(tmp_path).base(0x10, ONE).diff(0x20, TWO).diff(0x30, THREE, truncate=True)
    made = reader(builder.write())
    before = actions(made, at("0/10", 1), at("0/30", 1))
    base = Builder(tmp_path, epoch=1).base(0x20, TWO).artifacts[0]
    builder.artifacts.insert(2, base)
    builder.artifacts[3]["epoch"] = builder.epoch = 2
    builder.write()
    assert actions(made, at("0/10", 1), at("0/30", 1)) == before
    assert latest(made, at("0/30", 1)) == at("0/30", 1)
    builder.diff(0x40, FOUR).write()
    assert latest(made, at("0/30", 1)) == at("0/40", 2)
    assert actions(made, at("0/30", 1), at("0/40", 2)) == [("INSERT", "10"), ("UPDATE", "9")]


def test_retention_removed_what_comes_next(tmp_path: Path) -> None:
    builder = simple(tmp_path)
    del builder.artifacts[:3]
    made = reader(builder.write())
    with pytest.raises(ChangesGone, match=r"after 0/20 \(epoch 1\).*retention.*checkpointLocation"):
        latest(made, at("0/20", 1))
    with pytest.raises(BoundaryGone):
        made.partitions(at("0/10", 1), at("0/20", 1))
    # The last boundary of the epoch before is where the base that continues it is.
    assert latest(made, at("0/30", 1)) == at("0/40", 2)

    made = reader(builder.write(), on_gap="snapshot")
    assert latest(made, at("0/20", 1)) == at("0/40", 2)
    whole = [("TRUNCATE", None), ("SNAPSHOT", "9"), ("INSERT", "10"), ("UPDATE", "9")]
    assert actions(made, at("0/20", 1), at("0/40", 2)) == whole
    # A batch whose end is gone is empty: the one after it has the whole.
    assert actions(made, at("0/10", 1), at("0/20", 1)) == []


@pytest.mark.parametrize("position", [0x20, 0x30])
def test_changes_before_a_gap_come_first(tmp_path: Path, position: int) -> None:
    builder = Builder(tmp_path).base(0x10, ONE).diff(0x20, TWO)
    made = reader(builder.base(position, THREE, continues=False).write())
    assert latest(made, at("0/10", 1)) == at("0/20", 1)
    with pytest.raises(ChangesGone, match="missed"):
        latest(made, at("0/20", 1))


def test_other_columns_end_a_running_query(tmp_path: Path) -> None:
    builder = Builder(tmp_path).base(0x10, ONE).diff(0x20, TWO)
    made = reader(builder.write(), on_gap="snapshot")
    builder.columns = (*COLUMNS[:2], Column("extra", "text", -1, True, 3))
    builder.base(0x30, {b"1": b'{"id":1,"name":"A","extra":"x"}'}, continues=False).write()
    assert latest(made, at("0/10", 1)) == at("0/20", 1)
    with pytest.raises(ColumnsChanged, match="extra text"):
        latest(made, at("0/20", 1))
    # Started again it goes on, and what was before lacks the column.
    again = reader(builder.write(), on_gap="snapshot")
    assert latest(again, at("0/10", 1)) == at("0/30", 2)
    (task,) = again.partitions(at("0/10", 1), at("0/20", 1))
    news = [new for batch in again.read(task) for new in batch["new"].to_pylist()]
    assert {"id": 4, "name": "Dee", "extra": None} in news


def test_what_a_stream_refuses(tmp_path: Path) -> None:
    archive = simple(tmp_path).write()
    with pytest.raises(OptionRefused, match="no end"):
        reader(archive, until="0/30")
    with pytest.raises(OptionRefused, match="a stream reads each diff as it comes"):
        reader(archive, merged="true")
    with pytest.raises(OptionRefused, match="mode = changes"):
        reader(archive, mode="table")
    with pytest.raises(ArchiveBehind, match="0/50"):
        latest(reader(archive), at("0/50", 2))
    with pytest.raises(
        ChangesGone, match="nothing of the history 1:1:1: that is another archive's"
    ):
        latest(reader(archive), {"position": "0/40", "epoch": 2, "history": "1:1:1"})
    with pytest.raises(OffsetUnreadable, match="checkpointLocation"):
        latest(reader(archive), {"version": 7})


@pytest.mark.parametrize("on_gap", ["fail", "snapshot"])
def test_a_checkpoint_of_another_table(tmp_path: Path, on_gap: str) -> None:
    made = reader(simple(tmp_path).write(), on_gap=on_gap)
    orders = {**at("0/20", 1), "table": "public.orders"}
    wanted = r"checkpoint is of table public\.orders, and the archive is of public\.users\. Load"
    with pytest.raises(CheckpointOfOther, match=wanted):
        latest(made, orders)
    with pytest.raises(CheckpointOfOther, match=wanted):
        made.partitions(orders, {**orders, "position": "0/30"})


def test_offsets_of_earlier_versions(tmp_path: Path) -> None:
    """They name no table."""
    made = reader(simple(tmp_path).write())
    earlier = {"position": "0/30", "epoch": 2, "history": HISTORY}
    assert latest(made, earlier) == at("0/40", 2)
    assert actions(made, earlier, at("0/40", 2)) == [("INSERT", "10"), ("UPDATE", "9")]
    head: Offset = {**earlier, "position": "0/40"}
    assert latest(made, head) is head


@pytest.mark.thorough
def test_checkpoints_as_spark_keeps_them(spark: SparkSession, tmp_path: Path) -> None:
    """An earlier version's goes on; another table's ends the query before it reads a row."""
    builder = Builder(tmp_path / "archive").base(0x10, ONE).diff(0x20, TWO)
    stream = Stream(spark, builder.write(), tmp_path)
    stream.run()
    for file in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*"):
        text = file.read_text()
        assert '"table": "public.users"' in text
        file.write_text(text.replace(', "table": "public.users"', ""))
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    archive = builder.diff(0x30, THREE, truncate=True).write()
    stream.run()
    assert stream.found() == AT_20 + AT_30
    manifest_of(archive, lambda described: described.update(table="public.orders"))
    with pytest.raises(Exception, match=CheckpointOfOther.__name__) as failure:
        stream.run()
    assert "this checkpoint is of table public.users" in (own_message(failure.value) or "")
    assert stream.found() == AT_20 + AT_30


def test_each_change_once_across_restarts(spark: SparkSession, tmp_path: Path) -> None:
    builder = Builder(tmp_path / "archive").base(0x10, ONE).diff(0x20, TWO)
    stream = Stream(spark, builder.write(), tmp_path, max_diffs_per_trigger="1")
    stream.run()
    assert stream.found() == AT_20
    builder.diff(0x30, THREE, truncate=True).base(0x30, THREE).diff(0x40, FOUR).write()
    for _ in drawn.in_turn(("all that is new", "nothing new"), 0):
        stream.run()
        assert stream.found() == AT_20 + AT_30 + AT_40


def test_a_gap_ends_the_query_by_one_message(spark: SparkSession, tmp_path: Path) -> None:
    builder = Builder(tmp_path / "archive").base(0x10, ONE).diff(0x20, TWO)
    stream = Stream(spark, builder.write(), tmp_path)
    stream.run()
    archive = builder.base(0x30, THREE, continues=False).diff(0x40, FOUR).write()
    with pytest.raises(Exception, match=ChangesGone.__name__) as failure:
        stream.run()
    assert 'on_gap = "snapshot"' in (own_message(failure.value) or "")
    Stream(spark, archive, tmp_path, on_gap="snapshot").run()
    assert stream.found() == AT_20 + SNAPSHOT_30 + AT_40


# Retention deletes while changes are read: what was planned is read whole, or says that it's gone.


QUICK = "retention { keep_epochs = 1, collect_interval = 200ms, cut_off = 1s, grace = 1s }"
Tasks = Callable[[], Iterator[dict[str, Any]]]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "state", "users") as server:
        yield server


def planned(made: ChangesStreamReader, start: Offset, end: Offset) -> Tasks:
    """A batch, not read yet."""
    tasks = list(made.partitions(start, end))

    def read() -> Iterator[dict[str, Any]]:
        for task in tasks:
            for batch in made.read(task):
                yield from batch.to_pylist()

    return read


def applied(state: State, changes: Iterator[dict[str, Any]]) -> State:
    """The table after a batch; every change must fit what was before."""
    state = dict(state)
    for change in sorted(changes, key=lambda c: (c["epoch"], c["lsn"], c["key"] is not None)):
        if change["action"] == "TRUNCATE":
            state.clear()
            continue
        key = change["key"].encode()
        assert state.pop(key, b"").decode() == (change["old"] or "")
        if change["new"] is not None:
            state[key] = change["new"].encode()
    return state


def files_up_to(place: Path, end: Offset) -> list[Path]:
    """Those of the diffs that end there or earlier."""
    last = positions.parse(str(end["position"]))
    found = Archive.at(str(place)).epochs[-1].diffs
    named = [
        entry.key for diff in found if diff.to_position <= last for entry in diff.formats.values()
    ]
    return [place.parent / key for key in named]


def test_a_stream_whose_files_the_collector_deletes(tmp_path: Path, served: Served) -> None:
    options = {"lines": "true", "also": "epoch,lsn", "on_gap": "snapshot"}
    with ReadyWriter(tmp_path, served, more=QUICK) as writer:
        place = tmp_path / "archive" / "users"
        for number in range(15, 25):
            writer.wait_head(served.commit("users", put(number, "one")))
        made = reader(place, **options)
        begun = latest(made, FIRST)
        first = latest(made, begun)
        state = applied({}, planned(made, begun, first)())
        assert state == served.state_at("users", positions.parse(str(first["position"])))

        writer.wait_head(served.commit("users", put(1, "two"), put(2, "two")))
        second = latest(made, first)
        batch = planned(made, first, second)
        [*_, file] = files_up_to(place, second)
        for _ in range(2):
            assert writer.post("/snapshot?wait=true").status_code == 200
        wait_until(lambda: not file.exists(), f"{file.name} is deleted")
        with pytest.raises(BoundaryGone, match=rf"{file.name}.*retention has removed it"):
            list(batch())

        # Started again: the batch that can't be had is empty, and the next has the whole.
        writer.wait_head(served.commit("users", put(3, "three")))
        again = reader(place, **options)
        assert list(planned(again, first, second)()) == []
        third = latest(again, second)
        whole = list(planned(again, second, third)())
        assert [change["action"] for change in whole[:2]] == ["TRUNCATE", "SNAPSHOT"]
        assert applied(state, iter(whole)) == served.state_at("users", served.position)

        strict = reader(place, **{**options, "on_gap": "fail"})
        with pytest.raises(BoundaryGone, match="keep more epochs"):
            strict.partitions(first, second)
        with pytest.raises(ChangesGone, match="no boundary is there: retention has removed it"):
            latest(strict, second)


def three_diffs(directory: Path) -> Builder:
    builder = Builder(directory).base(0x10, names({1: "a"}))
    for number, name in enumerate(("b", "c", "d"), 1):
        builder.diff(0x10 + 0x10 * number, names({1: name}))
    return builder


def removed(builder: Builder) -> None:
    """The first epoch leaves the manifest."""
    builder.base(0x40, names({1: "d"}))
    del builder.artifacts[:-1]
    builder.write()


def test_what_was_planned_is_read_while_the_files_are_there(tmp_path: Path) -> None:
    builder = three_diffs(tmp_path)
    made = Reading(builder.write(), mode="changes", partitions="1")
    source, tasks = made.partitions()
    removed(builder)
    found = [line for task in tasks for batch in source.read(task) for line in batch.to_pylist()]
    assert [(line["old"]["name"], line["new"]["name"]) for line in found] == [
        ("a", "b"),
        ("b", "c"),
        ("c", "d"),
    ]
    with pytest.raises(BoundaryGone):
        made.rows()


def test_a_task_that_began_ends_with_an_error(tmp_path: Path) -> None:
    builder = three_diffs(tmp_path)
    archive = builder.write()
    source, [task] = Reading(archive, mode="changes", partitions="1").partitions()
    batches = source.read(task)
    assert next(batches).num_rows == 1
    removed(builder)
    for file in archive.glob("epoch=1/diff-*"):
        file.unlink()
    with pytest.raises(BoundaryGone, match=r"diff-0_20-0_30.*which the changes up to 0/40"):
        list(batches)


def test_a_diff_that_was_placed_anew_is_read_there(tmp_path: Path) -> None:
    builder = three_diffs(tmp_path)
    archive = builder.write()
    source, [task] = Reading(archive, mode="changes", partitions="1").partitions()
    for artifact in builder.artifacts[1:]:
        entry = artifact["formats"]["jsonl"]
        old = tmp_path / entry["key"]
        entry["key"] = entry["key"].replace("epoch=1/", "epoch=1/anew-")
        old.rename(tmp_path / entry["key"])
    builder.write()
    found = [line["new"]["name"] for batch in source.read(task) for line in batch.to_pylist()]
    assert found == ["b", "c", "d"]
