"""Each trigger makes the real process re-base; min_interval holds it back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from laredo_archive.maintain.verify import verify
from laredo_archive.reader import Archive
from laredo_model.column import Column
from tests.support import drawn
from tests.support.archive.unusual_json import DOCS
from tests.support.processes import wait_until
from tests.support.writer.served import Served, line, put, rows
from tests.support.writer.writing import ReadyWriter, Writer


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "state") as server:
        server.add("users", rows(0, 100))
        server.start()
        yield server


def rebases(writer: Writer) -> list[float]:
    """Number of those done, and failed."""
    name = 'snapshotter_rebases_total{{outcome="{}",table="public.users"}}'
    metrics = writer.metrics()
    return [metrics[name.format(outcome)] for outcome in ("done", "failed")]


@pytest.mark.parametrize(
    "trigger",
    drawn.first(
        1,
        [
            "max_diff_bytes = 500",
            "max_churn_fraction = 0.1",
            "max_diffs = 1",
            "max_diff_fraction = 0.1",
            "max_churn_records = 10",
        ],
    ),
)
def test_a_trigger_begins_a_new_epoch_and_not_before(
    tmp_path: Path, served: Served, trigger: str
) -> None:
    with ReadyWriter(tmp_path, served, more=f"snapshot {{ {trigger} }}") as writer:
        if trigger != "max_diffs = 1":
            writer.wait_head(served.commit("users", put(1, "little")))
            wait_until(lambda: writer.status()["diffs_since_snapshot"] == 1, "a diff")
            assert writer.manifest()["epoch"] == 1
        last = served.commit("users", *(put(number, "much") for number in range(2, 22)))
        writer.wait_epoch(2)
        writer.wait_head(last)
        name = trigger.split(" ", 1)[0]
        wait_until(
            lambda: name in {line["reason"] for line in writer.logged("re-base committed")}, name
        )
        writer.assert_equal()


def test_max_interval_re_bases_a_quiet_table_too(tmp_path: Path, served: Served) -> None:
    with ReadyWriter(tmp_path, served, more="snapshot { max_interval = 1s }") as writer:
        writer.wait_epoch(2)
        position = served.advance()
        writer.wait_epoch(4)
        assert f"0/{position:X}" in {found["to_position"] for found in writer.artifacts()}
        bases = [found for found in writer.artifacts() if found["kind"] == "snapshot"]
        assert all(base["continues"] for base in bases[1:])
        writer.assert_equal()


def test_a_re_base_that_is_refused_a_second_stream_is_tried_again(
    tmp_path: Path, served: Served
) -> None:
    with ReadyWriter(tmp_path, served) as writer:
        assert rebases(writer) == [0, 0]
        served.registry.max_clients = 1
        assert writer.post("/snapshot").status_code == 202
        wait_until(lambda: writer.status()["last_rebase_problem"], "problem told")
        wait_until(lambda: rebases(writer)[1] >= 1, "failed")
        assert rebases(writer)[0] == 0
        writer.wait_head(served.commit("users", put(1, "diffs go on")))
        assert writer.program.is_ready()
        failing = 'snapshotter_rebase_failing_seconds{table="public.users"}'
        assert writer.metrics()[failing] > 0
        served.registry.max_clients = 10
        writer.wait_epoch(2)
        wait_until(lambda: writer.status()["last_rebase_problem"] is None, "problem over")
        assert writer.metrics()[failing] == 0
        wait_until(lambda: rebases(writer)[0] == 1, "done")
        writer.assert_equal()


def test_the_base_that_a_diff_calls_for_waits_for_no_interval(
    tmp_path: Path, served: Served
) -> None:
    """The diff is committed early, as its changes fill the memory; the next cut is in an hour."""
    more = "diff { max_memory = 64 KiB }, snapshot { max_churn_records = 100 }"
    with ReadyWriter(tmp_path, served, interval="1h", more=more) as writer:
        many = [put(number, "x" * 50) for number in range(1000)]
        position = served.commit("users", *many)
        writer.wait_epoch(2)
        base = writer.artifacts()[-1]
        assert (base["kind"], base["to_position"]) == ("snapshot", f"0/{position:X}")
        assert [kind for kind, _ in writer.kinds()] == ["snapshot", "diff", "snapshot"]
        writer.assert_equal()


def test_a_churn_fraction_is_of_the_rows_that_the_table_has_now(
    tmp_path: Path, served: Served
) -> None:
    with ReadyWriter(tmp_path, served, more="snapshot { max_churn_fraction = 0.95 }") as writer:
        writer.wait_head(
            served.commit("users", *(put(number, "new") for number in range(100, 900)))
        )
        last = served.commit("users", put(1, "another cut"))
        writer.wait_head(last)
        writer.wait_status({"buffer_depth": 0, "churn_records": 801, "rows": 900})
        assert writer.manifest()["epoch"] == 1
        served.commit("users", *(put(number, "changed") for number in range(100)))
        writer.wait_epoch(2)
        writer.assert_equal()


@pytest.mark.parametrize("snapshot", ["min_interval = 1h, max_diffs = 1", "max_diffs = 0"])
def test_min_interval_holds_max_diffs_back_and_0_switches_it_off(
    tmp_path: Path, served: Served, snapshot: str
) -> None:
    with ReadyWriter(tmp_path, served, more=f"snapshot {{ {snapshot} }}") as writer:
        for number in range(4):
            writer.wait_head(served.commit("users", put(number, "x")))
        assert [kind for kind, _ in writer.kinds()] == ["snapshot"] + 4 * ["diff"]
        assert not writer.logged("re-base scheduled")


def test_keys_are_said_as_go_prints_them_too(tmp_path: Path, served: Served) -> None:
    with ReadyWriter(tmp_path, served, more="key_format = go") as writer:
        writer.wait_head(served.commit("users", put(1, "one"), put(1000001, "many")))
        (diff,) = [found for found in writer.artifacts() if found["kind"] == "diff"]
        lines = (writer.archive / diff["formats"]["jsonl"]["key"]).read_bytes().splitlines()
        said = [b'"KEY":"1.000001e+06"' in line for line in lines]
        assert (said, [b'"KEY"' in line for line in lines]) == ([False, True], [False, True])
        writer.assert_equal()


# The writer carries json that few parsers hold from the stream to every format, as it is.


WITH_DOCS = (
    Column("id", "int8", nullable=False, ordinal=1, key_ordinal=1),
    Column("name", "text", ordinal=2),
    Column("doc", "json", ordinal=3),
    Column("last", "text", ordinal=4),
)


def name_with(doc: bytes, name: str) -> str:
    """A name that, as served.line() writes it, brings the other columns with it."""
    return f'{name}","doc":{doc.decode()},"last":"'


def test_base_and_diffs_hold_the_very_lines(tmp_path: Path) -> None:
    docs = list(enumerate(DOCS))
    old = {b"%d" % number: line(number, name_with(doc, "old")) for number, doc in docs}
    formats = "formats { snapshot = [jsonl, protobuf, parquet], diff = [jsonl, protobuf] }"
    with (
        Served(tmp_path / "state") as served,
        Writer(tmp_path, served, "docs", more=formats) as writer,
    ):
        served.add("docs", old, columns=WITH_DOCS)
        served.start()
        writer.program.wait_ready()
        last = served.commit("docs", *(put(n, name_with(doc, "new")) for n, doc in docs))
        writer.wait_head(last, "docs")
        archive = Archive.at(str(writer.archive / "docs"))
        assert len(archive.boundaries) == 2
        for boundary in archive.boundaries:
            found: dict[bytes, bytes] = {}
            for keys, lines in archive.rows(boundary):
                found.update(zip(keys, lines, strict=True))
            assert found == served.state_at("docs", boundary.position)
        assert verify(archive).problems == []
