"""Indexes that are unique: an error that names both rows, or the last one wins."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laredo_fanout.client import BadField, NotUnique, TableIndex
from laredo_fanout.client.table.index import Index
from laredo_fanout.client.table.rows import PARTS
from laredo_model.line import Action
from tests.fanout.client.kept_copy import Server, row
from tests.fanout.client.real_server import TABLE
from tests.fanout.client.scripted_replica import as_changes, filled, keys, load
from tests.support.processes import PATIENCE_S, wait_until

ERROR = {"by_name": TableIndex(["name"], unique="error")}
LAST = {"by_name": TableIndex(["name"], unique="last")}


def line(number: int, name: str | None) -> bytes:
    text = "null" if name is None else f'"{name}"'
    return f'{{"id":{number},"name":{text}}}'.encode()


def update(number: int, name: str | None) -> tuple[int, bytes, bytes]:
    return (Action.UPDATE, str(number).encode(), line(number, name))


TWO = {b"1": line(1, "a"), b"2": line(2, "b")}


def test_a_second_row_is_an_error_that_names_both() -> None:
    replica = filled(TWO, indexes=ERROR)
    with pytest.raises(NotUnique, match=r"index 'by_name' .* keys 1 and 2 ") as raised:
        replica.apply(as_changes([(0x20, [update(2, "a")])]), differences=False)
    assert raised.value.keys == (b"1", b"2")
    assert replica.reached.position == 0x10


def test_rows_may_swap_their_values_within_a_transaction() -> None:
    replica = filled(TWO, indexes=ERROR)
    # In two batches: what is judged is the transaction's end, not a message's.
    replica.apply(as_changes([(0x20, [update(1, "b")])], goes_on=True), differences=False)
    replica.apply(as_changes([(0x20, [update(2, "a")])], first=7), differences=False)
    assert replica.lookup_index("by_name", ["a"]) == [line(2, "a")]
    assert replica.lookup_index("by_name", ["b"]) == [line(1, "b")]


def test_a_transaction_that_is_sent_again_is_judged_again() -> None:
    replica = filled(TWO, indexes=ERROR)
    for _ in range(2):
        with pytest.raises(NotUnique):
            replica.apply(as_changes([(0x20, [update(2, "a")])]), differences=True)


def test_a_snapshot_is_judged_as_a_whole() -> None:
    with pytest.raises(NotUnique, match="by_name"):
        filled({b"1": line(1, "a"), b"2": line(2, "a")}, indexes=ERROR)


def test_null_equals_nothing() -> None:
    replica = filled({b"1": line(1, None), b"2": line(2, None)}, indexes=ERROR)
    assert len(replica.lookup_index("by_name", [None])) == 2


def test_the_last_wins_and_the_one_before_it_comes_back() -> None:
    replica = filled({b"1": line(1, "a"), b"2": line(2, "b"), b"3": line(3, "c")}, indexes=LAST)
    replica.apply(as_changes([(0x20, [update(3, "a"), update(2, "a")])]), differences=False)
    assert replica.lookup_index("by_name", ["a"]) == [line(2, "a")]
    replica.apply(as_changes([(0x30, [(Action.DELETE, b"2", b"")])]), differences=False)
    assert replica.lookup_index("by_name", ["a"]) == [line(3, "a")]


changes = st.lists(
    st.tuples(keys, st.sampled_from(["a", "b", "c", None])).map(
        lambda found: update(int(found[0]), found[1])
    ),
    min_size=1,
    max_size=8,
)


@given(rows=st.lists(changes, min_size=1, max_size=6))
def test_it_raises_if_and_only_if_a_transaction_leaves_two(
    rows: list[list[tuple[int, bytes, bytes]]],
) -> None:
    replica = filled({}, indexes=ERROR)
    names: dict[bytes, bytes] = {}
    for number, transaction in enumerate(rows):
        names.update({key: line for _, key, line in transaction})
        left = [name.partition(b'"name":')[2] for name in names.values() if b"null" not in name]
        batch = as_changes([(0x20 + 16 * number, transaction)])
        if len(set(left)) < len(left):
            with pytest.raises(NotUnique):
                replica.apply(batch, differences=False)
            return
        replica.apply(batch, differences=False)


@pytest.mark.parametrize("many", [2, 8, 9, 40, 9000])
def test_an_index_of_many_equal_values_finds_and_forgets_all(many: int) -> None:
    replica = filled({}, indexes={"by_name": ("name",)})  # type: ignore[dict-item]
    rows = {b"%05d" % number: line(number, "same") for number in range(many)}
    load(replica, rows, 0x20)
    assert replica.lookup_index("by_name", ["same"]) == list(rows.values())
    gone = [(Action.DELETE, key, b"") for key in list(rows)[1:]]
    replica.apply(as_changes([(0x30, gone)]), differences=False)
    assert replica.lookup_index("by_name", ["same"]) == [line(0, "same")]
    # Not only hidden: no key of a row that is gone is kept.
    kept = [key for part in replica._indexes.parts() for key in part if isinstance(key, bytes)]
    assert len(kept) <= 1


def test_a_value_that_only_shares_its_hash_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laredo_fanout.client.table.index._HASH", 1)
    rows = {b"%d" % number: line(number, "abcdef"[number]) for number in range(6)}
    for indexes in (ERROR, LAST, {"by_name": TableIndex(["name"])}):
        replica = filled(rows, indexes=indexes)
        for number in range(6):
            found = replica.lookup_index("by_name", ["abcdef"[number]])
            assert found == [line(number, "abcdef"[number])]
        assert replica.lookup_index("by_name", ["z"]) == []


def test_what_an_index_can_be() -> None:
    with pytest.raises(BadField, match="unique"):
        TableIndex(["name"], unique="first")  # type: ignore[arg-type]
    with pytest.raises(BadField, match="list"):
        TableIndex("name")


def test_the_client_ends_with_the_error_and_goes_on_when_it_is_cured(server: Server) -> None:
    index = {"by_size": TableIndex(["size"], unique="error")}
    with server.client(indexes=index) as client:
        server.source.write([(Action.UPDATE, "a", "y", "acme", 1)])
        wait_until(lambda: client.error is not None, "it ends")
        assert isinstance(client.error, NotUnique)
        assert '["a","x"] and ["a","y"]' in str(client.error)
        assert TABLE in str(client.error)
        server.source.write([(Action.UPDATE, "a", "x", "acme", 7)])
        client.start()
        client.await_ready(PATIENCE_S)
        assert client.lookup_index("by_size", 7) == [row("a", "x", "acme", 7)]
        assert client.lookup_index("by_size", 1) == [row("a", "y", "acme", 1)]


def test_the_keys_of_a_value_that_many_rows_had_are_freed() -> None:
    index = Index("by_name", ["name"])
    rows = {b"%d" % number: {"name": "a"} for number in range(10_000)}
    for key, values in rows.items():
        index.change(key, None, values)
    assert len(index.parts()) > PARTS and len(index.find(["a"], lambda _: ("a",))) == 10_000
    for key, values in rows.items():
        index.change(key, values, None)
    assert len(index.parts()) == PARTS and not any(index.parts())
