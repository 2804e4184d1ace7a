"""The layout of the store in words: what changes when the bytes that are written change.

``python -m tests.fanout.store.formats.description`` records that of a new format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor

from laredo_fanout.catchup import spool
from laredo_fanout.catchup.plan import CatchupPlan, Segment, SpoolPiece
from laredo_fanout.decode.frames import framed
from laredo_fanout.relay.path import Hop
from laredo_fanout.relay.path import Path as RelayPath
from laredo_fanout.store import layout, meta, table
from laredo_fanout.store.journal.record import Header
from laredo_fanout.store.meta import LastRecopy, Marker, SourceIdentity, StoreHead
from laredo_fanout.store.table import Leaf, Status, SuspectRange, TableRecord
from laredo_fanout.wire.replication_pb2 import ChangeBatch
from laredo_model import line
from laredo_model.column import Column
from laredo_model.history import Ancestor, History

HERE = Path(__file__).parent

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
    closed_at=5,
    copy={"key": "value"},
    sequence=6,
    oldest_sequence=7,
    oldest_time_us=8,
    floor=9,
    rows=10,
    generation=11,
    space=12,
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
    yield "databases", b" ".join(layout.DATABASES)
    yield "store", (meta.STORE_KEY, HEAD.to_bytes())
    yield "position", (meta.POSITION_KEY, meta.position_to_bytes(1, 2).hex())
    yield "definition", (meta.DEFINITION, table.definition_to_bytes(TABLE))
    yield "figures", (meta.FIGURES, table.figures_to_bytes(TABLE).hex())
    yield "statuses", [each.value for each in Status]
    yield "garbage", (meta.GARBAGE_SPACE, meta.GARBAGE_JOURNAL)
    yield "catchup", (meta.CATCHUP_KEY, PLAN.to_bytes())
    hop = Hop("server", "address", 1, 2.0)
    yield "upstream path", (meta.UPSTREAM_PATH_KEY, RelayPath((hop,), 0.0).to_bytes().hex())
    space = layout.prefix(7)
    yield "row", layout.stored_key(space, b"key").hex()
    yield "long row", layout.stored_key(space, b"k" * 1000).hex()
    marks = (layout.PARTIAL_MARK, layout.STREAMED_MARK, layout.TOMBSTONE_MARK)
    yield "marks", [layout.mark_key(each, space + b"key").hex() for each in marks]
    yield "lines", (layout.TOMBSTONE, line.PARTIAL, line.MISSING, line.join(("a",), [b"1"]))
    yield "journal", layout.record_key(1, 2).hex()
    yield "positions", layout.position_key(1, 2, 3).hex()
    header = Header(1, 2, 3, 4, 5, open=True, continues=True)
    yield "record", header.to_bytes().hex()
    yield "record's body", dict(_message(ChangeBatch.DESCRIPTOR))
    yield "spool", (spool.path(Path(), 1, 2).name, framed(b"message").hex())


def _message(descriptor: Descriptor) -> Iterator[tuple[str, tuple[int, int, bool]]]:
    """Number, type and whether there are several, by the field's name."""
    for field in sorted(descriptor.fields, key=lambda field: field.number):
        yield field.name, (field.number, field.type, field.is_repeated)


if __name__ == "__main__":
    (HERE / f"{meta.FORMAT}.txt").write_text(description())
