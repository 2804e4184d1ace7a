"""The version of a table: the catalog's marks by which a later check notices silent DDL.

Silent DDL is a statement that changes values or moves rows without a message in the stream:
ALTER TYPE ... USING, an enum's label renamed, an attribute added to a composite type; a partition
attached, detached or truncated; the publication narrowed and made whole again.

What went and came back between two checks has its name again, so a name identifies nothing. Each
mark is a number that PostgreSQL never gives twice: a column's attnum, the oid of the key's
constraint or index, the transaction that wrote a row of the catalog. A cheap statement must leave
it alone: GRANT, OWNER TO and SET STATISTICS write most rows that belong to a table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from laredo_fanout.catalog import partitions as partitions_
from laredo_fanout.catalog.partitions import Partition, StoredPartition

if TYPE_CHECKING:
    from laredo_fanout.postgres.connections import Connection


class Version(NamedTuple):
    """The marks of one catalog check."""

    attributes: str
    """The transactions that wrote the table's pg_attribute rows."""
    file: int
    """The file that holds the rows."""
    types: tuple[str, ...]
    """The labels of enums and the attributes of composites that its columns are made of."""
    partitions: tuple[StoredPartition, ...]
    publication: str | None
    """The transaction that last wrote the publication's own row; None: there was none."""
    publication_owner: int | None
    owner_alone: bool
    """True if OWNER TO wrote the publication's row, as the first command of its transaction."""
    columns: tuple[int, ...] = ()
    """The numbers (attnum) of the columns that the stream carries."""
    key: str = ""
    """The oid of the key's constraint, or else of its index, and its columns' numbers."""
    schema: str = ""
    """The publication's row for the table's schema; empty: it has none."""
    by_name: bool = True
    """True if the publication names the table, so that PostgreSQL refuses SET UNLOGGED."""


def changed(
    before: Version, now: Version, partitions: Sequence[Partition], *, partitioned: bool
) -> str | None:
    """Reason why silent DDL may have changed rows or values; None if it can't have."""
    if before.publication is not None and _narrowed(before, now):
        return "the publication was altered"
    if now.schema != before.schema:
        return "it left a schema of the publication and came back"
    if now.key != before.key:
        return "its key was dropped and made again"
    return (
        _rewritten(before, now)
        or _type_changed(before.types, now.types)
        or (partitions_.moved(before.partitions, partitions) if partitioned else None)
    )


def _narrowed(before: Version, now: Version) -> bool:
    """True if the publication may not have published everything in between.

    OWNER TO writes the same row as SET (publish = ...). If an OWNER TO wrote it last, the catalog
    has no trace of a version between the two, and we assume that there was none.
    """
    if now.publication == before.publication:
        return False
    owners = before.publication_owner, now.publication_owner
    return not (now.owner_alone and owners[0] is not None and owners[0] != owners[1])


def _rewritten(before: Version, now: Version) -> str | None:
    """Reason why values of the table's own columns may have changed, or None.

    ALTER TYPE ... USING writes pg_attribute rows and a new file. Changed rows alone are harmless
    (SET STATISTICS), and so is a new file (VACUUM FULL, TRUNCATE), unless it may be the second one
    of SET UNLOGGED and SET LOGGED: changes between these two aren't in the WAL.
    """
    altered = now.attributes != before.attributes
    if now.columns != before.columns:
        return "a column was dropped, and another one has its name"
    if now.file != before.file and altered:
        return "its rows were rewritten"
    if now.file != before.file and not now.by_name:
        return "its rows are in another file, and may have been changed while it was unlogged"
    return None


def _type_changed(before: Sequence[str], now: Sequence[str]) -> str | None:
    """Reason why a type may print stored values in another way, or did; None if it can't.

    An enum may get labels. Earlier labels must stay, and be of the same row in the catalog.
    """
    if set(now).issuperset(before):
        return None
    return "a type that its columns are made of was changed"


# A renamed label has another row, of another transaction. relnatts also counts what was dropped.
_TYPES = """
WITH RECURSIVE used(relation, type) AS (
    SELECT attrelid, atttypid FROM pg_attribute
    WHERE attrelid = ANY(%s) AND attnum > 0 AND NOT attisdropped
    UNION
    SELECT used.relation, part.type FROM used
    JOIN pg_type t ON t.oid = used.type
    CROSS JOIN LATERAL (
        SELECT unnest(ARRAY[t.typelem, t.typbasetype])
        UNION ALL SELECT rngsubtype FROM pg_range WHERE t.oid IN (rngtypid, rngmultitypid)
        UNION ALL SELECT atttypid FROM pg_attribute
        WHERE attrelid = t.typrelid AND attnum > 0 AND NOT attisdropped
    ) AS part(type)
    WHERE part.type >= 16384
)
SELECT relation::int8, format('%%s@%%s=%%s', e.oid, e.xmin, e.enumlabel)
FROM used JOIN pg_enum e ON e.enumtypid = used.type
UNION ALL
SELECT relation::int8, format('%%s@%%s(%%s)', c.oid, c.relnatts, (
    SELECT string_agg(format('%%s:%%s', attnum, atttypid), ',' ORDER BY attnum) FROM pg_attribute
    WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped))
FROM used JOIN pg_type t ON t.oid = used.type AND t.typtype = 'c'
JOIN pg_class c ON c.oid = t.typrelid
"""


def read_types(connection: Connection, oids: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """The types that these tables' columns are made of, in the form of ``Version.types``."""
    found: dict[int, list[str]] = {oid: [] for oid in oids}
    for oid, part in connection.execute(_TYPES, (list(oids),)).fetchall():
        found[oid].append(part)
    return {oid: tuple(sorted(parts)) for oid, parts in found.items()}


_COMPOSITE = re.compile(r"(\d+)@\d+\(")


def relations_within(version: Version) -> list[int]:
    """The relations of the composite types that the columns are made of: their oids."""
    found = (_COMPOSITE.match(part) for part in version.types)
    return [int(composite[1]) for composite in found if composite is not None]


def to_json(version: Version) -> dict[str, Any]:
    """The JSON that the table's record keeps."""
    return {**version._asdict(), "partitions": [list(each) for each in version.partitions]}


def from_json(stored: Mapping[str, Any]) -> Version:
    """Read what :func:`to_json` made."""
    kept = {name: tuple(stored[name]) for name in ("types", "columns")}
    partitions = tuple(StoredPartition(*each) for each in stored["partitions"])
    return Version(**{**stored, **kept, "partitions": partitions})
