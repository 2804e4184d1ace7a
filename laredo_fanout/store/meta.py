"""The meta database: the store's position, its source, tables' definitions, and their format.

=========================  ====================================================
key in the meta database   value
=========================  ====================================================
store                      JSON: format, next table, next space, source, streams, marker, ...
position                   position u64, commit time in microseconds u64
definition/ + table u32    JSON (``table.py``)
figures/ + table u32       struct (``table.py``)
garbage/ + kind + u32      b"": what is to be removed in small steps
catchup                    how a backlog was split; the source's own words
upstream_path              of a relay: JSON, the servers between PostgreSQL and this one
=========================  ====================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import Any, NamedTuple

import orjson

from laredo_fanout.store import table
from laredo_fanout.store.disk import Reserve
from laredo_fanout.store.layout import prefix
from laredo_fanout.store.table import TableRecord
from laredo_model import position as position_
from laredo_model.position import Ancestor, History, Lineage

FORMAT = 3
"""The number of the layout that this version writes, and the only one that it reads. It is raised
when the layout changes (tests/fanout/store/test_format.py)."""

STORE_KEY = b"store"
POSITION_KEY = b"position"
DEFINITION = b"definition/"
FIGURES = b"figures/"
GARBAGE = b"garbage/"
CATCHUP_KEY = b"catchup"
UPSTREAM_PATH_KEY = b"upstream_path"
GARBAGE_SPACE = GARBAGE + b"S"
GARBAGE_JOURNAL = GARBAGE + b"J"

_POSITION = Struct(">QQ")


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """Source of a store's changes; its positions mean nothing elsewhere."""

    #: System identifier, timeline and database.
    history: History
    #: The slot's name.
    slot: str
    #: The publication's identity.
    publication: str
    #: What was made up when the slot was created, to recognise it.
    token: str = ""
    #: The histories that this one goes on from.
    ancestors: tuple[Ancestor, ...] = ()
    #: Why it was begun where it couldn't go on from another one (a sentence); empty at first.
    because: str = ""
    #: At which position it was begun.
    since: int = 0
    #: How far positions went of histories that this store followed before and that mean nothing
    #: here: up to there a position alone may be one of theirs.
    former_reach: int = 0
    #: Sequences of those histories are below this.
    former_sequences: int = 0

    @property
    def lineage(self) -> Lineage:
        """The history, and those that it goes on from."""
        return Lineage(self.history, self.ancestors)


class Marker(NamedTuple):
    """A message of ours that the stream brought: whoever finds something else there reads another
    history."""

    #: The end of its transaction.
    position: int
    #: What it says.
    content: str


class LastRecopy(NamedTuple):
    """Result of a table's last re-copy."""

    #: Unix time.
    ended_at: float
    #: How many rows differed.
    differing: int = 0
    #: Why it ended without a result, if it did.
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StoreHead:
    """Data that a store has once, as opposed to once a table."""

    #: The environment's format number.
    format: int = FORMAT
    #: The next table id.
    next_table: int = 1
    #: The next space.
    next_space: int = 1
    #: Whose changes these are; None in a fresh store.
    source: SourceIdentity | None = None
    #: Names of replication connections that PostgreSQL may still have for it, the newest last.
    streams: tuple[str, ...] = ()
    #: The last message of ours that the stream brought.
    marker: Marker | None = None
    #: How re-copies ended, by qualified name.
    last_recopies: Mapping[str, LastRecopy] = field(default_factory=dict)
    #: Made up when the store was made: by it a relay finds itself among those it would follow.
    server_id: str = ""

    def to_bytes(self) -> bytes:
        """As JSON."""
        source = self.source and {
            "history": str(self.source.history),
            "slot": self.source.slot,
            "publication": self.source.publication,
            "token": self.source.token,
            "ancestors": position_.ancestors_to_json(self.source.ancestors),
            "because": self.source.because,
            "since": self.source.since,
            "former_reach": self.source.former_reach,
            "former_sequences": self.source.former_sequences,
        }
        return orjson.dumps(
            {
                "format": self.format,
                "next_table": self.next_table,
                "next_space": self.next_space,
                "source": source,
                "streams": self.streams,
                "marker": self.marker and list(self.marker),
                "server_id": self.server_id,
                "last_recopies": {name: list(last) for name, last in self.last_recopies.items()},
            }
        )

    def take_table(self) -> tuple[int, "StoreHead"]:
        """A table id never used before."""
        return self.next_table, replace(self, next_table=self.next_table + 1)

    def take_space(self) -> tuple[int, "StoreHead"]:
        """A space never used before."""
        return self.next_space, replace(self, next_space=self.next_space + 1)


def format_of(stored: bytes) -> tuple[object, str | None]:
    """The format's number in a head of any version, and the slot's name if it can be found."""
    read = orjson.loads(stored)
    source = read.get("source")
    slot = source.get("slot") if isinstance(source, dict) else None
    return read["format"], slot if isinstance(slot, str) else None


def head_from_bytes(stored: bytes) -> StoreHead:
    """The head that ``to_bytes`` wrote, in this version's format."""
    read = orjson.loads(stored)
    source = read["source"]
    return StoreHead(
        read["format"],
        read["next_table"],
        read["next_space"],
        source
        and SourceIdentity(
            position_.parse_history(source["history"]),
            source["slot"],
            source["publication"],
            source["token"],
            position_.ancestors_from_json(source["ancestors"]),
            source["because"],
            source["since"],
            source["former_reach"],
            source["former_sequences"],
        ),
        tuple(read["streams"]),
        read["marker"] and Marker(*read["marker"]),
        {name: LastRecopy(*last) for name, last in read["last_recopies"].items()},
        read["server_id"],
    )


def position_to_bytes(position: int, time_us: int) -> bytes:
    """Up to where PostgreSQL's changes are in the store, and their last commit time."""
    return _POSITION.pack(position, time_us)


def position_from_bytes(stored: bytes | None) -> tuple[int, int]:
    """Position and commit time; zeros in a fresh store."""
    if stored is None:
        return 0, 0
    position, time_us = _POSITION.unpack(stored)
    return position, time_us


def put_table(
    transaction: Any, meta: Any, reserve: Reserve, record: TableRecord, before: TableRecord | None
) -> None:
    """Write what of ``record`` differs from what was stored ``before``."""
    if before is None or not record.same_definition(before):
        definition = table.definition_to_bytes(record)
        reserve(1, len(definition))
        transaction.put(DEFINITION + prefix(record.id), definition, db=meta)
    reserve(1, 0)
    transaction.put(FIGURES + prefix(record.id), table.figures_to_bytes(record), db=meta)


def delete_table(transaction: Any, meta: Any, table_id: int) -> None:
    """Forget one table's record."""
    transaction.delete(DEFINITION + prefix(table_id), db=meta)
    transaction.delete(FIGURES + prefix(table_id), db=meta)


def all_tables(transaction: Any, meta: Any) -> list[TableRecord]:
    """The stored records of all tables, in order of their ids."""
    records = []
    cursor = transaction.cursor(db=meta)
    found = cursor.set_range(DEFINITION)
    while found and cursor.key().startswith(DEFINITION):
        figures = transaction.get(FIGURES + cursor.key()[len(DEFINITION) :], db=meta)
        records.append(table.from_bytes(cursor.value(), figures))
        found = cursor.next()
    cursor.close()
    return records
