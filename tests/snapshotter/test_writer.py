"""One table from stream to archive, by the real process: bases, diffs, restarts, re-bases."""

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from laredo_archive.maintain.verify import verify
from laredo_archive.reader import Archive
from laredo_model.column import Column
from laredo_model.position import History
from tests.support import drawn
from tests.support.archive.several_epochs import rows_at
from tests.support.archive.unusual_json import DOCS
from tests.support.processes import wait_until
from tests.support.writer.served import COLUMNS, TRUNCATE, Change, Served, delete, line, put, rows
from tests.support.writer.writing import ReadyWriter, Writer


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "state") as server:
        server.add("users", rows(0, 100))
        server.start()
        yield server


def test_the_first_base_is_the_streams_snapshot_and_diffs_follow(
    tmp_path: Path, served: Served
) -> None:
    with ReadyWriter(tmp_path, served) as writer:
        assert writer.kinds() == [("snapshot", 1)]
        writer.wait_head(served.commit("users", put(1, "changed"), put(100, "new"), delete(2)))
        writer.wait_head(served.commit("users", TRUNCATE, put(7, "after")))
        writer.wait_head(served.commit("users", put(8, "more")))
        writer.assert_equal()
        assert [found["truncate"] for found in writer.artifacts()[1:]] == [False, True, False]


def test_changes_that_cancel_out_are_no_diff(tmp_path: Path, served: Served) -> None:
    # No cut falls between two of them: the only one is made when the writer ends.
    with ReadyWriter(tmp_path, served, interval="1h") as writer:
        served.commit("users", put(500, "new"))
        served.commit("users", delete(500))
        last = served.commit("users", put(1, "x"))
        served.commit("users", put(1, "row 1"))
        writer.wait_status({"stream_position": f"0/{served.position:X}"})
        assert writer.program.stop() == 0, writer.program.tail()
        assert writer.kinds() == [("snapshot", 1)], f"a diff up to {last:#x} or so"


def test_killed_it_goes_on_in_the_same_epoch(tmp_path: Path, served: Served) -> None:
    with ReadyWriter(tmp_path, served) as writer:
        writer.wait_head(served.commit("users", put(1, "a")))
        served.commit("users", put(2, "lost from the buffer, not from the journal"))
        writer.program.kill()
        served.commit("users", put(3, "while nobody listened"))
        writer.program.start()
        writer.wait_head(served.commit("users", delete(4)))
        assert {epoch for _, epoch in writer.kinds()} == {1}
        writer.assert_equal()


@pytest.mark.parametrize("how", drawn.first(1, ["SIGTERM", "SIGINT"]))
def test_a_signal_flushes_the_last_diff(tmp_path: Path, served: Served, how: str) -> None:
    with ReadyWriter(tmp_path, served, interval="1h") as writer:
        position = served.commit("users", put(1, "last"))
        writer.wait_status({"buffer_depth": 1})
        assert writer.program.stop(signal.Signals[how]) == 0, writer.program.tail()
        assert writer.head() == position
        writer.assert_equal()


def test_a_journal_that_doesnt_reach_back_means_a_new_epoch_after_a_gap(
    tmp_path: Path, served: Served
) -> None:
    with ReadyWriter(tmp_path, served) as writer:
        writer.wait_head(served.commit("users", put(1, "a")))
        writer.program.kill()
        for number in range(5):
            served.commit("users", put(number, "missed"))
        served.forget_journal("users")
        writer.program.start()
        writer.wait_epoch(2)
        assert writer.artifacts()[-1]["continues"] is False
        writer.wait_head(served.commit("users", put(1, "b")))
        writer.assert_equal()


def test_another_history_means_a_new_epoch(tmp_path: Path, served: Served) -> None:
    with ReadyWriter(tmp_path, served) as writer:
        writer.wait_head(served.commit("users", put(1, "a")))
        writer.program.kill()
        served.set_history(History(7300000000000000002, 1, 16384))
        served.advance()
        writer.program.start()
        writer.wait_epoch(2)
        newest = writer.artifacts()[-1]
        assert (newest["history"], newest["continues"]) == ("7300000000000000002:1:16384", False)


def test_a_changed_schema_ends_the_old_epoch_with_all_its_changes(
    tmp_path: Path, served: Served
) -> None:
    with ReadyWriter(tmp_path, served, interval="1h") as writer:
        position = served.commit("users", put(1, "the last of the old schema"))
        writer.wait_status({"buffer_depth": 1})
        wider = (*COLUMNS, Column("age", "int4", ordinal=3))
        served.add("users", {b"1": b'{"id":1,"name":"a","age":null}'}, wider)
        writer.wait_epoch(2)
        before, base = writer.artifacts()[-2:]
        assert before["to_position"] == f"0/{position:X}"
        assert (base["kind"], base["continues"], base["row_count"]) == ("snapshot", False, 1)
        assert [column["name"] for column in base["columns"]] == ["id", "name", "age"]
        writer.assert_equal()


def test_a_restarted_server_costs_nothing(tmp_path: Path, served: Served) -> None:
    with ReadyWriter(tmp_path, served) as writer:
        served.stop()
        wait_until(lambda: not writer.program.is_ready(), "not ready")
        answer = writer.program.get("/health/ready")
        assert answer is not None and served.address in answer.text
        position = served.commit("users", put(1, "meanwhile"))
        served.start()
        writer.wait_head(position)
        writer.program.wait_ready()
        assert {epoch for _, epoch in writer.kinds()} == {1}
        writer.assert_equal()


def test_a_transaction_larger_than_memory_is_one_diff(tmp_path: Path, served: Served) -> None:
    with ReadyWriter(tmp_path, served, more="diff { max_memory = 200 kB }") as writer:
        giant = [put(number, "x" * 100) for number in range(20_000)]
        position = served.commit("users", *giant, *(delete(n) for n in range(5000)))
        writer.wait_head(position)
        writer.assert_equal()
        assert [found["to_position"] for found in writer.artifacts()[1:]] == [f"0/{position:X}"]
        assert writer.artifacts()[-1]["change_count"] == 100 + 15_000
        wait_until(lambda: writer.logged("transaction spilled"), "it is told")


def test_a_full_buffer_is_flushed_early_at_a_transactions_end(
    tmp_path: Path, served: Served
) -> None:
    with ReadyWriter(
        tmp_path, served, interval="1h", more="diff { max_memory = 64 KiB }"
    ) as writer:
        for start in range(0, 3000, 50):
            served.commit("users", *(put(number, "x" * 50) for number in range(start, start + 50)))
        wait_until(lambda: len(writer.kinds()) > 5, "early diffs")
        writer.assert_equal()
        assert max(found["change_count"] for found in writer.artifacts()[1:]) < 1000


def test_re_bases_lose_nothing_while_changes_go_on(tmp_path: Path, served: Served) -> None:
    chance = random.Random(7)
    with ReadyWriter(
        tmp_path, served, interval="50ms", more="snapshot { max_diffs = 4 }"
    ) as writer:
        while writer.manifest()["epoch"] < 6:
            served.commit_all("users", (random_changes(chance, served) for _ in range(3)))
        last = served.commit("users", put(1, "last"))
        writer.wait_head(last)
        writer.assert_equal()
        bases = [found for found in writer.artifacts() if found["kind"] == "snapshot"]
        assert all(base["continues"] for base in bases[1:])


def random_changes(chance: random.Random, served: Served) -> list[Change]:
    state = dict(served.state_at("users", served.position))
    changes: list[Change] = []
    for _ in range(chance.randrange(1, 6)):
        number = chance.randrange(120)
        if b"%d" % number in state and chance.random() < 0.4:
            del state[b"%d" % number]
            changes.append(delete(number))
        else:
            state[b"%d" % number] = b""
            changes.append(put(number, f"v{chance.randrange(5)}"))
    return changes


def test_a_server_that_is_away_is_a_line_in_the_log_for_each_table(
    tmp_path: Path, served: Served
) -> None:
    served.stop()
    for name in ("orders", "items", "prices"):
        served.add(name, rows(0, 5))
    served.start()
    tables = ("users", "orders", "items", "prices")
    with ReadyWriter(tmp_path, served, *tables) as writer:
        served.stop()

        def attempts() -> list[float]:
            figures = writer.metrics().items()
            return [
                each for name, each in figures if name.startswith("snapshotter_stream_errors_t")
            ]

        wait_until(lambda: len(attempts()) >= 4 and min(attempts()) >= 4, "each has tried again")
        served.start()
        writer.program.wait_ready()
        tried = sum(attempts())
        # That is known with the first event after the handshake.
        wait_until(lambda: len(writer.logged("connected again")) == 4, "all tables")
        lines = [line for line in writer.logged("disconnected") if line["level"] == "warning"]
        # Of a server that ends, and of one that isn't there.
        assert len(lines) <= 2 * len(tables) < tried
        assert {(line["table"], line["kind"]) for line in lines} == {
            (line["table"], line["kind"]) for line in writer.logged("disconnected")
        }


# Each trigger makes the real process re-base; min_interval holds it back.


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
            assert rows_at(archive, boundary) == served.state_at("docs", boundary.position)
        assert verify(archive).problems == []
        base, diff = writer.artifacts("docs")
        assert base["formats"].keys() == {"jsonl", "protobuf", "parquet"}
        assert base["formats"]["parquet"]["exact"] is False
        assert diff["formats"].keys() == {"jsonl", "protobuf"}
