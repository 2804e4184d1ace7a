"""Which rows and changes a filtered session sees."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import orjson
import pytest

from laredo_fanout.serving.errors import BadRequest
from laredo_fanout.serving.filters import RowFilter
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model.column import Column
from laredo_model.line import Action
from tests.support.server.filters import conditions, equals, value
from tests.support.server.serving_world import COLUMNS, line, running

INSERT, UPDATE, DELETE, TRUNCATE = Action

ALL_KINDS = (*COLUMNS, Column("score", "float8", ordinal=5), Column("paid", "bool", ordinal=6))


def prefix(field: str, start: str) -> wire.FieldPredicate:
    return wire.FieldPredicate(field=field, prefix=start)


def is_in(field: str, *plain: Any) -> wire.FieldPredicate:
    predicate = wire.FieldPredicate(field=field)
    getattr(predicate, "in").SetInParent()
    getattr(predicate, "in").values.extend(value(each) for each in plain)
    return predicate


def filter_of(
    predicates: Sequence[wire.FieldPredicate], columns: Sequence[Column] = COLUMNS
) -> RowFilter:
    return RowFilter(conditions(predicates), columns)


ROW = {
    "id": 9007199254740993,
    "name": 'a"b\u2028é',
    "price": "1.00",
    "tags": {"a": [1, "two"]},
    "score": 0.1,
    "paid": True,
}


@pytest.mark.parametrize(
    ("predicate", "row", "passes"),
    [
        (equals("id", "9007199254740993"), {}, True),
        (equals("id", "9007199254740992"), {}, False),
        (equals("id", 9007199254740992.0), {}, False),
        (equals("id", 42), {"id": 42}, True),
        (equals("id", "42"), {"id": 42}, True),
        (equals("id", "42.0"), {"id": 42}, True),
        (equals("id", 42.5), {"id": 42}, False),
        (equals("id", "x"), {"id": 42}, False),
        (equals("name", 'a"b\u2028é'), {}, True),
        (equals("name", 'a"b'), {}, False),
        (equals("name", 42), {"name": "42"}, True),
        (equals("name", "042"), {"name": "42"}, False),
        (equals("name", None), {"name": None}, False),
        (equals("name", ""), {"name": None}, False),
        (equals("name", ""), {"name": ""}, True),
        (equals("price", "1.00"), {}, True),
        (equals("price", 1), {}, True),
        (equals("price", "1"), {}, True),
        (equals("price", 1.01), {}, False),
        (equals("score", 0.1), {}, True),
        (equals("score", "0.1"), {}, True),
        (equals("paid", True), {}, True),
        (equals("paid", False), {}, False),
        (equals("paid", 1), {}, False),
        (equals("id", True), {"id": 1}, False),
        (equals("tags", "x"), {"tags": "x"}, True),
        (equals("tags", "x"), {"tags": ["x"]}, False),
        (prefix("name", 'a"'), {}, True),
        (prefix("name", "b"), {}, False),
        (prefix("name", ""), {}, True),
        (prefix("name", ""), {"name": None}, False),
        (prefix("id", "9007"), {}, True),
        (is_in("name", "x", 'a"b\u2028é'), {}, True),
        (is_in("name", "x", "y"), {}, False),
        (is_in("name"), {}, False),
        (is_in("id", "1", 42), {"id": 42}, True),
        (is_in("name", None, "x"), {"name": None}, False),
        (is_in("price", "x", 1), {}, True),
        (is_in("score", 0.2, "0.1"), {}, True),
        (is_in("paid", "x", True), {}, True),
        (equals("id", "1e999999999"), {"id": 1}, False),
        (equals("id", float("inf")), {"id": 1}, False),
        (equals("price", float("nan")), {"price": "NaN"}, False),
        (equals("price", "NaN"), {"price": "NaN"}, True),
    ],
)
def test_predicates(predicate: wire.FieldPredicate, row: dict[str, Any], passes: bool) -> None:
    chosen = filter_of([predicate], ALL_KINDS)
    assert chosen.matches(orjson.dumps({**ROW, **row})) is passes


def test_predicates_are_anded() -> None:
    both = filter_of([equals("id", 1), prefix("name", "a")])
    assert both.matches(line(1, "ab"))
    assert not both.matches(line(1, "b"))
    assert not both.matches(line(2, "ab"))


def test_rows_that_the_fast_parser_refuses_are_tested_too() -> None:
    odd = b'{"id":1,"name":"x","price":null,"tags":["\\ud800",%s]}' % (b"9" * 5000)
    assert filter_of([equals("name", "x")]).matches(odd)
    assert not filter_of([equals("id", 2)]).matches(odd)


@pytest.mark.parametrize(
    ("predicate", "names"),
    [
        (equals("nope", 1), "filters[0]: the table has no column 'nope'"),
        (wire.FieldPredicate(field="id"), "filters[0] (id): give one of"),
        (equals("id", []), "filters[0].equals"),
        (is_in("id", 1, []), "filters[0].in[1]"),
    ],
)
def test_what_cannot_be_tested_is_refused(predicate: wire.FieldPredicate, names: str) -> None:
    with pytest.raises(
        BadRequest, match=names.replace("[", r"\[").replace("(", r"\(").replace(")", r"\)")
    ):
        filter_of([predicate])


async def test_a_bad_filter_is_an_invalid_argument(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        world.writer.publish()
        code, details = await world.sync(filters=[equals("nope", 1)]).ends()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "nope" in details and "name" in details


async def test_the_snapshot_holds_only_rows_that_pass(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        world.writer.publish([line(n, "even" if n % 2 == 0 else "odd") for n in range(3000)])
        stream = await world.greeted(batch=True, filters=[equals("name", "odd"), prefix("id", "1")])
        _, lines, end = await stream.snapshot()
        wanted = [n for n in range(3000) if n % 2 and str(n).startswith("1")]
        assert sorted(lines) == sorted(line(n, "odd") for n in wanted)
        assert end.rows_sent == len(wanted)
        # rows and checksum are the whole table's
        assert end.rows == 3000
        base = await world.greeted(filters=[equals("name", "odd"), prefix("id", "1")])
        _, structs, _ = await base.base_snapshot()
        assert sorted(struct["id"] for struct in structs) == wanted


async def test_rows_that_move_into_and_out_of_the_filter(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        world.writer.publish([line(n, "no") for n in range(5)])
        batch = world.sync(batch=True, want_old=True, filters=[equals("name", "yes")])
        base = world.sync(filters=[equals("name", "yes")])
        for stream in (batch, base):
            await stream.next("handshake")
            await stream.next("snapshot_begin")
            await stream.next("snapshot_end")
        position = world.writer.commit(
            (UPDATE, line(1, "no", "2")),  # stays outside
            (UPDATE, line(2, "yes")),  # moves in
            (UPDATE, line(2, "yes", "3")),  # stays inside
            (INSERT, line(10, "no")),
            (INSERT, line(11, "yes")),
            (UPDATE, line(2, "no")),  # moves out
            (DELETE, b"11"),
            (DELETE, b"10"),
            (TRUNCATE, b""),
        )
        seen = await batch.next("change_batch")
        first = seen.sequences[0] - 1
        assert [number - first for number in seen.sequences] == [1, 2, 4, 5, 6, 8]
        assert seen.first_sequence == seen.sequences[0]
        assert list(seen.actions) == [INSERT, UPDATE, INSERT, DELETE, DELETE, TRUNCATE]
        assert list(seen.keys) == [b"2", b"2", b"11", b"2", b"11", b""]
        assert list(seen.lines) == [
            line(2, "yes"), line(2, "yes", "3"), line(11, "yes"), b"", b"", b"",
        ]  # fmt: skip
        assert list(seen.old_lines) == [
            b"", line(2, "yes"), b"", line(2, "yes", "3"), line(11, "yes"), b"",
        ]  # fmt: skip
        assert list(seen.counts) == [6] and list(seen.positions) == [position]

        entries = [await base.next("journal_entry") for _ in range(6)]
        assert [entry.action for entry in entries] == [
            "INSERT", "UPDATE", "INSERT", "DELETE", "DELETE", "TRUNCATE",
        ]  # fmt: skip
        assert [entry.sequence for entry in entries] == list(seen.sequences)
        assert [entry.HasField("old_values") for entry in entries] == [
            False, True, False, True, True, False,
        ]  # fmt: skip
        assert [entry.HasField("new_values") for entry in entries] == [
            True, True, True, False, False, False,
        ]  # fmt: skip


async def test_transactions_without_a_passing_change_are_left_out(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        world.writer.publish([line(n, "no") for n in range(5)])
        stream = await world.greeted(batch=True, filters=[equals("name", "yes")])
        await stream.snapshot()
        world.writer.commit_all([[(UPDATE, line(n, "no", "2"))] for n in range(5)])
        last = world.writer.commit_all(
            [
                [(UPDATE, line(0, "no", "3"))],
                [(UPDATE, line(1, "no", "3"))],
                [(UPDATE, line(2, "yes")), (UPDATE, line(3, "yes"))],
                [(UPDATE, line(4, "no", "3"))],
            ]
        )
        seen = await stream.next("change_batch")
        assert list(seen.keys) == [b"2", b"3"]
        transactions = dict(zip(seen.positions, seen.counts, strict=True))
        assert transactions[last - 0x10] == 2
        assert sum(transactions.values()) == 2 and not seen.open


async def test_a_transaction_of_several_records_ends_for_a_filtered_client(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        world.writer.publish([line(0, "no")])
        stream = await world.greeted(batch=True, filters=[equals("name", "yes")])
        await stream.snapshot()
        position = world.writer.commit(
            (INSERT, line(1, "yes")), *[(INSERT, line(n, "no")) for n in range(2, 5000)]
        )
        seen = await stream.next("change_batch")
        assert list(seen.keys) == [b"1"] and seen.open
        while seen.open:
            seen = await stream.next("change_batch")
        assert list(seen.positions) == [position] and list(seen.counts) == [0]
