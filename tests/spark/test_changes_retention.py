"""Retention deletes while changes are read: what was planned is read whole, or says that it's gone.

A stream is run by hand here, as Spark does: an offset is put down, its batch is planned, its
tasks read; a batch whose tasks failed is planned again.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from laredo_archive.reader import Archive
from laredo_model import position as positions
from laredo_spark.changes.stream import ChangesStreamReader, Offset
from laredo_spark.errors import BoundaryGone, ChangesGone
from tests.spark.change_stream import FIRST, latest, reader
from tests.support.archive.building import Builder
from tests.support.processes import wait_until
from tests.support.spark_reading import Reading, names
from tests.support.writer.served import Served, State, put, rows
from tests.support.writer.writing import ReadyWriter

QUICK = "retention { keep_epochs = 1, collect_interval = 200ms, cut_off = 1s, grace = 1s }"
Tasks = Callable[[], Iterator[dict[str, Any]]]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "state") as server:
        server.add("users", rows(0, 20))
        server.start()
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
        with pytest.raises(ChangesGone, match="retention has removed the diffs after it"):
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
