"""The replica: against a plain model, with transactions broken off and sent again."""

from collections.abc import Iterator, Sequence
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laredo_fanout.client import BadField, Changes, Heartbeat, Mode, SnapshotRows
from laredo_fanout.client.table.rows import RowView
from laredo_model.column import Column
from laredo_model.position import Position
from tests.fanout.client.scripted_replica import (
    Row,
    Transaction,
    as_changes,
    done,
    filled,
    greeting,
    keys,
    rows_of,
)

PAIR = (
    Column("instance_id", "text", ordinal=1, key_ordinal=1),
    Column("key", "int4", ordinal=2, key_ordinal=2),
    Column("tenant", "text", ordinal=3),
    Column("weight", "float8", ordinal=4),
)


def model(rows: dict[bytes, bytes], changes: Sequence[Row]) -> dict[bytes, bytes]:
    after = dict(rows)
    for action, key, line in changes:
        if action == 4:
            after.clear()
        elif action == 3:
            after.pop(key, None)
        else:
            after[key] = line
    return after


names = st.sampled_from([b"a", b"b", b"c"])


@st.composite
def changes_(draw: st.DrawFn) -> Row:
    action = draw(st.sampled_from([1, 1, 2, 2, 2, 3, 4]))
    key = b"" if action == 4 else draw(keys)
    return action, key, b"" if action >= 3 else b'{"id":%s,"name":"%s"}' % (key, draw(names))


transactions_ = st.lists(st.lists(changes_(), min_size=1, max_size=6), min_size=1, max_size=6).map(
    lambda found: [(0x20 + 0x10 * number, rows) for number, rows in enumerate(found)]
)


@given(transactions=transactions_, data=st.data(), listening=st.booleans(), indexed=st.booleans())
def test_transactions_broken_off_and_sent_again_have_no_effect_twice(
    transactions: list[Transaction], data: st.DataObject, listening: bool, indexed: bool
) -> None:
    start = {b"1": b'{"id":1,"name":"a"}'}
    replica = filled(start, indexes={"by_name": ("name",)} if indexed else None)
    heard = dict(start)
    seen: list[tuple[RowView, list[bytes], Iterator[bytes]]] = []
    views = data.draw(st.booleans())
    if views:
        replica.view()  # from then on there is one at any time
    sent_whole = 0
    breaks = data.draw(st.lists(st.integers(0, len(transactions)), max_size=4))
    for whole in [*sorted(breaks), len(transactions)]:
        batch = list(transactions[sent_whole:whole])
        broken = whole < len(transactions)
        if broken:
            position, rows = transactions[whole]
            batch.append((position, rows[: data.draw(st.integers(0, len(rows)))]))
        for part in as_parts(batch, broken, data):
            for difference in replica.apply(part, differences=listening):
                assert heard.get(difference.key) == difference.old
                assert difference.old != difference.new
                if difference.new is None:
                    del heard[difference.key]
                else:
                    heard[difference.key] = difference.new
            done(replica.free())
            if views and data.draw(st.booleans()):
                view = replica.view()
                assert view is not None
                lines = view.lines()
                seen.append((view, list(islice(lines, data.draw(st.integers(0, 2)))), lines))
            if seen and data.draw(st.booleans()):
                view, first, lines = seen.pop(0)
                assert_of_its_moment(view, [*first, *lines], start, transactions)
        replica.begin_stream(greeting(Mode.DELTA))
        sent_whole = whole
    expected = model(start, [row for _, rows in transactions for row in rows])
    assert rows_of(replica) == expected
    assert replica.reached.position == transactions[-1][0]
    for view, first, lines in seen:
        assert_of_its_moment(view, [*first, *lines], start, transactions)
    seen.clear()
    if listening:
        assert heard == expected
    if indexed:
        for name in (b"a", b"b", b"c"):
            wanted = [expected[key] for key in sorted(expected) if name in expected[key][-4:]]
            assert replica.lookup_index("by_name", [name.decode()]) == wanted


def assert_of_its_moment(
    view: RowView,
    lines: list[bytes],
    start: dict[bytes, bytes],
    transactions: list[Transaction],
) -> None:
    """A view has each whole transaction up to its position, and nothing after it."""
    whole = [rows for position, rows in transactions if position <= (view.position or 0)]
    expected = model(start, [row for rows in whole for row in rows])
    assert sorted(lines) == sorted(expected.values())


def as_parts(batch: list[Transaction], broken: bool, data: st.DataObject) -> list[Changes]:
    """One batch or several; a cut may go through a transaction."""
    if not batch:
        return []
    if not data.draw(st.booleans()):
        return [as_changes(batch, goes_on=broken)]
    position, rows = batch[-1]
    cut = data.draw(st.integers(0, len(rows)))
    return [
        as_changes([*batch[:-1], (position, rows[:cut])], goes_on=True),
        as_changes([(position, rows[cut:])], goes_on=broken),
    ]


def test_the_place_moves_at_whole_transactions_only() -> None:
    replica = filled({})
    replica.apply(as_changes([(0x20, [(1, b"1", b"{}")])]), differences=False)
    assert (replica.reached.position, replica.reached.sequence) == (0x20, 6)
    part = as_changes([(0x30, [(1, b"2", b"{}")])], 7, goes_on=True)
    replica.apply(part, differences=False)
    assert (replica.reached.position, replica.reached.open_position) == (0x20, 0x30)
    replica.heartbeat(Heartbeat(Position(0x40), 7, None))
    assert replica.reached.position == 0x20
    replica.apply(as_changes([(0x30, [])], 8), differences=False)
    assert (replica.reached.position, replica.reached.sequence) == (0x30, 7)
    replica.heartbeat(Heartbeat(Position(0x40), 9, None))
    assert (replica.reached.position, replica.reached.sequence) == (0x40, 9)


def test_readers_see_the_old_rows_until_the_snapshot_is_whole() -> None:
    replica = filled({b"1": b'{"id":1}'})
    replica.begin_snapshot()
    done(replica.add_rows(SnapshotRows([b"2"], [b'{"id":2}'])))
    assert replica.lookup([1]) == b'{"id":1}'
    assert replica.lookup([2]) is None
    replica.begin_stream(greeting(Mode.DELTA))  # the stream broke: what was staged is dropped
    assert rows_of(replica) == {b"1": b'{"id":1}'}


def pairs() -> dict[bytes, bytes]:
    return {
        b'["a",1]': b'{"instance_id":"a","key":1,"tenant":"x","weight":0.5}',
        b'["a",2]': b'{"instance_id":"a","key":2,"tenant":"y","weight":2}',
        b'["b\\"",1]': b'{"instance_id":"b\\"","key":1,"tenant":"x","weight":null}',
    }


@pytest.mark.parametrize("fields", [None, ("instance_id", "key")])
def test_composite_keys_are_looked_up_without_an_index(fields: tuple[str, ...] | None) -> None:
    replica = filled(pairs(), columns=PAIR, lookup_fields=fields)
    assert replica.lookup(["a", 2]) == pairs()[b'["a",2]']
    assert replica.lookup(["a", "2"]) == pairs()[b'["a",2]']
    assert replica.lookup(['b"', 1]) == pairs()[b'["b\\"",1]']
    assert replica.lookup(["c", 1]) is None


def test_key_fields_in_another_order() -> None:
    replica = filled(pairs(), columns=PAIR, lookup_fields=("key", "instance_id"))
    assert replica.lookup([2, "a"]) == pairs()[b'["a",2]']


def test_fields_that_are_not_the_key_get_an_index() -> None:
    replica = filled(pairs(), columns=PAIR, lookup_fields=("tenant", "weight"))
    assert replica.lookup(["x", 0.5]) == pairs()[b'["a",1]']
    assert replica.lookup(["y", 2]) == pairs()[b'["a",2]']
    assert replica.lookup(["x", None]) == pairs()[b'["b\\"",1]']


def test_an_index_of_several_columns_and_rows() -> None:
    replica = filled(pairs(), columns=PAIR, indexes={"t": ("tenant",), "i": ("instance_id", "key")})
    assert replica.lookup_index("t", ["x"]) == [pairs()[b'["a",1]'], pairs()[b'["b\\"",1]']]
    assert replica.lookup_index("i", ["a", 1]) == [pairs()[b'["a",1]']]
    assert replica.lookup_index("t", ["nobody"]) == []


def test_wrong_fields_are_named() -> None:
    with pytest.raises(BadField, match="no column 'colour'; it has id, name"):
        filled({}, indexes={"c": ("colour",)})
    with pytest.raises(BadField, match="no column 'colour'"):
        filled({}, lookup_fields=("colour",))
    with pytest.raises(BadField, match="lookup_fields wants a list of columns, not"):
        filled({}, lookup_fields="id")
    replica = filled({}, indexes={"n": ("name",)})
    with pytest.raises(BadField, match="there is no index 'm'; configured: n"):
        replica.lookup_index("m", ["x"])
    with pytest.raises(BadField, match="wants 1 values"):
        replica.lookup_index("n", ["x", "y"])
    with pytest.raises(BadField, match="wants 1 values"):
        replica.lookup([1, 2])
    with pytest.raises(BadField, match="never NULL"):
        replica.lookup([None])
