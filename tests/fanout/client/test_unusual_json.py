"""Rows with json that Python can't hold: PostgreSQL keeps a json column's text as it was written.

Such a row ends no client; its other columns are as ever, and the value comes as RawJson.
"""

import asyncio
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from laredo_fanout.client import AsyncFanoutClient, BadField, FanoutClient, RawJson
from laredo_fanout.client.table.index import Entry, Index
from laredo_fanout.client.table.rows import DEEPEST, Row, as_text, columns_of, parse
from laredo_model.column import Column
from laredo_model.errors import BadLine
from laredo_model.line import Action
from tests.fanout.client.kept_copy import Server
from tests.fanout.client.real_server import TABLE, Source
from tests.support import drawn
from tests.support.processes import PATIENCE_S, until, wait_until

COLUMNS = (
    Column("id", "int8", nullable=False, ordinal=1, key_ordinal=1),
    Column("doc", "json", ordinal=2),
    Column("name", "text", ordinal=3),
)
HUGE = b"1e99999999999999999999"
DEEP = b"[" * 5000 + b"]" * 5000
UNUSUAL = {
    "huge": HUGE,
    "tiny": b"-1.5E-99999999999999999999",
    "huge inside": b'{"a":[' + HUGE + b"]}",
    "deep": DEEP,
    "deep object": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "just too deep": b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1),
}
HELD = {
    "as deep as it goes": b"[" * DEEPEST + b"]" * DEEPEST,
    "wide": b"[" + b"[]," * 5000 + b"{}]",
    "brackets in strings": b'["' + b"[{" * 5000 + b'\\""]',
    "many digits": b"7" * 5000,
    "beyond a double": b"1e400",
    "a lone surrogate": rb'{"a":"\ud800"}',
    "one name twice": b'{"a":1,"a":2}',
}


def line_of(number: int, doc: bytes, name: str) -> bytes:
    return b'{"id":%d,"doc":%s,"name":"%s"}' % (number, doc, name.encode())


def lines() -> dict[bytes, bytes]:
    docs = [*UNUSUAL.values(), *HELD.values()]
    return {b"%d" % number: line_of(number, doc, "old") for number, doc in enumerate(docs)}


@pytest.mark.parametrize("name", UNUSUAL)
def test_the_value_comes_as_its_text_and_the_others_as_ever(name: str) -> None:
    row = parse(line_of(7, UNUSUAL[name], "x"))
    assert (row["id"], row["name"]) == (7, "x")
    assert isinstance(row["doc"], RawJson)
    assert row["doc"] == UNUSUAL[name].decode()


@pytest.mark.parametrize("name", HELD)
def test_what_python_holds_is_no_raw_json(name: str) -> None:
    row = parse(line_of(7, HELD[name], "x"))
    assert not isinstance(row["doc"], RawJson)
    assert (row["id"], row["name"]) == (7, "x")


def test_one_columns_trouble_changes_no_other_column() -> None:
    text = b'{"n":0.1,"big":12345678901234567890.5,"doc":%s,"i":%s}' % (HUGE, b"9" * 5000)
    row = parse(text)
    assert row == {
        "n": 0.1,
        "big": Decimal("12345678901234567890.5"),
        "doc": HUGE.decode(),
        "i": Decimal("9" * 5000),
    }


def test_digits_beyond_a_limit_of_the_process() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert parse(b'{"n":%s}' % (b"7" * 1000)) == {"n": Decimal("7" * 1000)}
        assert as_text(10**1000) == "1" + "0" * 1000
    finally:
        sys.set_int_max_str_digits(before)


json_texts = st.recursive(
    st.sampled_from(
        [b"1", b"-0", b"1e400", b"1E99999999999999999999", b'"\\ud800"', b'"]["', b"null", b"1.10"]
    ),
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda items: b"[" + b",".join(items) + b"]")
        | st.lists(inner, max_size=3).map(
            lambda items: b"{" + b",".join(b'"k":' + item for item in items) + b"}"
        )
    ),
    max_leaves=12,
)


@given(docs=st.lists(json_texts, min_size=1, max_size=4), wraps=st.integers(0, 300))
def test_an_index_finds_every_row_and_forgets_it(docs: list[bytes], wraps: int) -> None:
    index = Index("index 'd'", ("doc", "name"))
    fields = frozenset(index.fields)
    known = {
        b"%d" % number: line_of(number, b"[" * wraps + doc + b"]" * wraps, "n")
        for number, doc in enumerate(docs)
    }

    def entry_of(key: bytes) -> Entry:
        return index.entry(columns_of(known[key], fields))

    for key, line in known.items():
        index.change(key, None, columns_of(line, fields))
    for key, line in known.items():
        row = parse(line)
        assert key in index.find((row["doc"], row["name"]), entry_of)
    for key, line in known.items():
        index.change(key, columns_of(line, fields), None)
        assert key not in index.find(entry_of(key), entry_of)


def test_a_line_that_is_no_row_is_told() -> None:
    with pytest.raises(BadLine):
        parse(b'{"id":1,"doc":}')


def test_values_that_no_row_can_have_are_refused() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(BadField, match="nested too deeply"):
        Index("index 'd'", ("doc",)).find((deep,), lambda key: ())


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    source = Source(tmp_path / "store")
    source.recopy(COLUMNS, lines())
    yield source
    source.store.close()


def rename_all(source: Source, name: str) -> None:
    """An UPDATE of every row, in one transaction."""
    docs = enumerate([*UNUSUAL.values(), *HELD.values()])
    source.write_lines([(Action.UPDATE, f"{n}", line_of(n, doc, name)) for n, doc in docs])


INDEXES = {"by_name": ("name",), "by_doc": ("doc",)}


def test_an_indexing_client_follows_and_listens(server: Server, tmp_path: Path) -> None:
    heard: list[Row] = []
    many = len(lines())
    with FanoutClient(
        server.address,
        TABLE,
        indexes=INDEXES,
        lookup_fields=("doc",),
        local_snapshot_path=tmp_path / "cache",
    ) as client:
        client.await_ready(PATIENCE_S)
        assert len(client.lookup_index("by_name", "old")) == many
        client.listen(lambda old, new: heard.append(new) if new else None)
        rename_all(server.source, "new")
        wait_until(lambda: len(heard) == many, "heard")
        assert client.lookup_index("by_name", "old") == []
        assert len(client.lookup_index("by_name", "new")) == many
        found = client.lookup_index("by_doc", HUGE.decode())
        assert [(row["name"], row["doc"]) for row in found] == [("new", HUGE.decode())]
        assert isinstance(found[0]["doc"], RawJson)
        assert client.lookup(DEEP.decode()) == found[0] | {
            "id": list(UNUSUAL).index("deep"),
            "doc": DEEP.decode(),
        }
        assert client.error is None
        assert client.listener_errors == 0
    again = FanoutClient(
        server.address, TABLE, indexes=INDEXES, local_snapshot_path=tmp_path / "cache"
    )
    with again:
        again.await_ready(PATIENCE_S)
        assert len(again.lookup_index("by_name", "new")) == many


class Rude(BaseException):
    """Not an Exception, as SystemExit and KeyboardInterrupt aren't."""


@pytest.mark.parametrize(
    "error", drawn.first(3, [RuntimeError, Rude, KeyboardInterrupt, SystemExit])
)
def test_what_a_listener_raises_ends_nothing(server: Server, error: type[BaseException]) -> None:
    heard: list[Row | None] = []

    def bad(old: Row | None, new: Row | None) -> None:
        raise error("its own")

    many = len(lines())
    with capture_logs() as logs, server.client() as client:
        client.listen(bad)
        client.listen(lambda old, new: heard.append(new))
        rename_all(server.source, "new")
        wait_until(lambda: len(heard) == many, "heard")
        rename_all(server.source, "newer")
        wait_until(lambda: len(heard) == 2 * many, "heard")
        assert client.error is None
        assert client.listener_errors == 2 * many
    told = [entry for entry in logs if "listener failed" in entry["event"]]
    assert len(told) == 1
    assert isinstance(told[0]["exc_info"], error)


async def test_a_listener_that_awaits_what_was_cancelled_ends_nothing(
    port: int, source: Source
) -> None:
    async def bad(old: Row | None, new: Row | None) -> None:
        never = asyncio.get_running_loop().create_future()
        never.cancel()
        await never

    heard: list[Row | None] = []
    async with AsyncFanoutClient(f"127.0.0.1:{port}", TABLE) as client:
        await client.await_ready(PATIENCE_S)
        await client.listen(bad)
        await client.listen(lambda old, new: heard.append(new))
        for turn, name in enumerate(("new", "newer"), 1):
            rename_all(source, name)
            await until(lambda turn=turn: len(heard) == turn * len(lines()), 60)  # type: ignore[misc]
        assert client.listener_errors == 2 * len(lines())
        assert client.error is None
