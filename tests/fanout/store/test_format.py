"""One format of the store: its layout has a number, and a store of another number is refused.

``python -m tests.fanout.store.test_format`` records the layout of a new number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from google.protobuf.descriptor import Descriptor

from laredo_fanout.catchup import spool
from laredo_fanout.catchup.plan import CatchupPlan, Segment, SpoolPiece
from laredo_fanout.decode.frames import framed
from laredo_fanout.pg_catalog import shape
from laredo_fanout.pg_catalog.partitions import StoredPartition
from laredo_fanout.pg_catalog.shape import Shape, ShapeColumn
from laredo_fanout.pg_catalog.table_definitions import Version
from laredo_fanout.relay.path import Hop
from laredo_fanout.relay.path import Path as RelayPath
from laredo_fanout.store import environment, journal, seal, table
from laredo_fanout.store.environment import LastRecopy, Marker, SourceIdentity, StoreHead
from laredo_fanout.store.errors import StoreFormatUnknown
from laredo_fanout.store.journal import Header
from laredo_fanout.store.reader import StoreReader
from laredo_fanout.store.table import Leaf, Status, SuspectRange, TableRecord
from laredo_fanout.store.writer import Store
from laredo_fanout.wire.replication_pb2 import ChangeBatch
from laredo_model import line
from laredo_model.column import Column
from laredo_model.position import Ancestor, History
from tests.support.processes import BIN, completed, free_port

RECORDED = Path(__file__).with_name(f"format_{environment.FORMAT}.txt")
SIZE = 1 << 24

HEAD = StoreHead(
    format=0,
    next_table=2,
    next_space=3,
    source=SourceIdentity(
        history=History(1, 2, 3, 4),
        slot="slot",
        publication="publication",
        token="token",
        ancestors=(Ancestor(History(5, 6, 7), 8),),
        because="because",
        since=9,
        former_reach=10,
        former_sequences=11,
    ),
    streams=("stream",),
    marker=Marker(12, "content"),
    last_recopies={"public.t": LastRecopy(13.0, 14, "error")},
    server_id="server",
)
TABLE = TableRecord(
    id=1,
    incarnation=2,
    schema="schema",
    name="name",
    oid=3,
    columns=(Column("id", "int8", 4, nullable=False, ordinal=1, key_ordinal=1),),
    status=Status.CLOSED,
    identity="identity",
    error="error",
    damage="damage",
    closed_at=5,
    copy=shape.to_json(
        Shape(1, "s", "t", (ShapeColumn("id", 23, -1, nullable=False),), ("id",), "true", 2, True),
        Version(
            "1,2",
            3,
            ("type",),
            (StoredPartition(4, "5", 6, detaching=True),),
            "7",
            8,
            True,
            (9,),
            "key",
            "schema",
            by_name=False,
        ),
    ),
    sequence=6,
    oldest_sequence=7,
    oldest_time_us=8,
    floor=9,
    rows=10,
    generation=11,
    space=12,
    checksum=25,
    verified=13,
    position=14,
    leaves=(Leaf(15, 16, 17, 18),),
    suspect_ranges=(SuspectRange(19, "because", 20, 21, 22, 23, True, 24),),
)
PLAN = CatchupPlan("token", "source", (Segment(1, 2, 3, (SpoolPiece(4, 5, 6),), done=True),))


def unset(value: Any) -> Iterator[str]:
    """The fields of a value, and of what is in it, that have their defaults: a new field that
    nobody has given a value here wouldn't be described."""
    if is_dataclass(value):
        for each in fields(value):
            found = getattr(value, each.name)
            if found == each.default or found in ((), {}):
                yield f"{type(value).__name__}.{each.name}"
            yield from unset(found)
    elif isinstance(value, tuple):
        defaults = getattr(value, "_field_defaults", {})
        yield from (
            f"{type(value).__name__}.{name}"
            for name, default in defaults.items()
            if getattr(value, name) == default and type(value).__name__ != "History"
        )
        for each in value:
            yield from unset(each)


def description() -> str:
    """The layout of what this version writes."""
    return "".join(f"{name}: {value}\n" for name, value in _parts())


def _parts() -> Iterator[tuple[str, object]]:
    yield "databases", " ".join(environment.Databases._fields).encode()
    yield "store", (environment.STORE_KEY, HEAD.to_bytes())
    yield "position", (environment.POSITION_KEY, environment.position_to_bytes(1, 2).hex())
    yield "definition", (environment.DEFINITION, table.definition_to_bytes(TABLE))
    yield "figures", (environment.FIGURES, table.figures_to_bytes(TABLE).hex())
    yield "statuses", [each.value for each in Status]
    yield "garbage", (environment.GARBAGE_SPACE, environment.GARBAGE_JOURNAL)
    yield "catchup", (environment.CATCHUP_KEY, PLAN.to_bytes())
    hop = Hop("server", "address", 1, 2.0)
    yield "upstream path", (environment.UPSTREAM_PATH_KEY, RelayPath((hop,), 0.0).to_bytes().hex())
    space = environment.prefix(7)
    yield "row", environment.stored_key(space, b"key").hex()
    yield "long row", environment.stored_key(space, b"k" * 1000).hex()
    marks = (environment.PARTIAL_MARK, environment.STREAMED_MARK, environment.TOMBSTONE_MARK)
    yield "marks", [environment.mark_key(each, space + b"key").hex() for each in marks]
    yield "lines", (environment.TOMBSTONE, line.PARTIAL, line.MISSING, line.join(("a",), [b"1"]))
    yield "seal", seal.plain_seal_number(b"key", b"a value of more than thirty-two bytes")
    yield "journal", journal.record_key(1, 2).hex()
    yield "positions", journal.position_key(1, 2, 3).hex()
    header = Header(1, 2, 3, 4, 5, open=True, continues=True)
    yield "record", header.to_bytes().hex()
    yield "record's body", dict(_message(ChangeBatch.DESCRIPTOR))
    yield "spool", (spool.path(Path(), 1, 2).name, framed(b"message").hex())


def _message(descriptor: Descriptor) -> Iterator[tuple[str, tuple[int, int, bool]]]:
    """Number, type and whether there are several, by the field's name."""
    for field in sorted(descriptor.fields, key=lambda field: field.number):
        yield field.name, (field.number, field.type, field.is_repeated)


def test_the_layout_is_the_one_recorded_for_its_number() -> None:
    assert RECORDED.exists(), "python -m tests.fanout.store.test_format"
    assert description() == RECORDED.read_text(), (
        "the store's layout has changed: raise FORMAT in laredo_fanout/store/environment.py, name"
        " the"
        " number in docs/operations/upgrade.md, then record the new layout"
        " (python -m tests.fanout.store.test_format)"
    )


def test_the_description_has_every_field() -> None:
    assert [name for value in (HEAD, TABLE, PLAN) for name in unset(value)] == []


def _stored(state: Path, head: dict[str, Any]) -> None:
    """A store with this in its head, as another version may have written it."""
    with Store.open(state, max_size=SIZE) as store, store.transaction() as transaction:
        raw = transaction._context.transaction
        raw.put(environment.STORE_KEY, orjson.dumps(head), db=store._databases.meta)


@pytest.mark.parametrize("number", [environment.FORMAT - 1, environment.FORMAT + 1, "x"])
def test_a_store_of_another_format_is_refused_and_left_alone(
    tmp_path: Path, number: object
) -> None:
    """By its number alone: nothing else of its head need be known."""
    _stored(tmp_path, {"format": number})
    before = (tmp_path / "data.mdb").read_bytes()[: 1 << 16]
    for opened in (lambda: Store.open(tmp_path, max_size=SIZE), lambda: StoreReader.open(tmp_path)):
        with pytest.raises(
            StoreFormatUnknown, match=f"format {number}, .* {environment.FORMAT} alone"
        ):
            opened()
    assert (tmp_path / "data.mdb").read_bytes()[: 1 << 16] == before


def test_the_server_refuses_a_store_of_another_format_in_words(tmp_path: Path) -> None:
    state = tmp_path / "state"
    _stored(state, {"format": 1, "source": {"slot": "s"}})
    file = tmp_path / "fanout.conf"
    file.write_text(
        f'state.path = "{state}"\n'
        f'sources.pg.connection = "host=127.0.0.1 port={free_port()} dbname=none"\n'
        f"fanout.grpc.port = {free_port()}, http.port = {free_port()}\n"
        "tables = [{ table = users }]\n"
    )
    ended = completed([BIN / "laredo-fanout", "--config", file])
    assert ended.returncode == 1
    lines = [json.loads(line) for line in ended.stderr.splitlines() if line.startswith("{")]
    (said,) = [line["error"] for line in lines if line["level"] == "error"]
    assert said == (
        f"the store {state} has format 1, this version reads format {environment.FORMAT} alone:"
        " run the"
        f" version that wrote it, or move {state} elsewhere, drop its slot"
        " (SELECT pg_drop_replication_slot('s')) and start the server again, which then copies"
        " every table"
    )


if __name__ == "__main__":
    RECORDED.write_text(description())
