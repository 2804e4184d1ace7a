"""The version of a table: the catalog's marks by which a later check notices silent DDL.

Silent DDL is a statement that changes values or moves rows without a message in the stream:
ALTER TYPE ... USING, an enum's label renamed, an attribute added to a composite type; a partition
attached, detached or truncated; the publication narrowed and made whole again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from laredo_fanout.catalog import partitions as partitions_
from laredo_fanout.catalog.partitions import Partition, StoredPartition

if TYPE_CHECKING:
    from laredo_fanout.postgres.connections import Connection


class Version(NamedTuple):
    """The marks of one catalog check; a store of an earlier release has only the first two."""

    attributes: str
    """The transactions that wrote the table's pg_attribute rows."""
    file: int
    """The file that holds the rows."""
    types: tuple[str, ...] | None = None
    """The labels of enums and the attributes of composites that its columns are made of."""
    partitions: tuple[StoredPartition, ...] = ()
    publication: str | None = None
    """The transaction that last wrote the publication's own row."""


def changed(
    before: Version, now: Version, partitions: Sequence[Partition], *, partitioned: bool
) -> str | None:
    """Why silent DDL may have changed rows or values; None if it can't have.

    ALTER TYPE ... USING writes pg_attribute rows and a new file; each alone is
    harmless (SET STATISTICS; VACUUM FULL, TRUNCATE). An enum may get labels; what
    was there must stay.
    """
    if now.attributes != before.attributes and now.file != before.file:
        return "its rows were rewritten"
    if before.types is not None and not set(before.types) <= set(now.types or ()):
        return "a type that its columns are made of was changed"
    if before.publication is not None and now.publication != before.publication:
        return "the publication was altered"
    if partitioned:
        return partitions_.moved(before.partitions, partitions)
    return None


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
SELECT relation::int8, format('%%s=%%s', e.oid, e.enumlabel)
FROM used JOIN pg_enum e ON e.enumtypid = used.type
UNION ALL
SELECT relation::int8, format('%%s(%%s)', t.typrelid, (
    SELECT string_agg(format('%%s:%%s', attnum, atttypid), ',' ORDER BY attnum) FROM pg_attribute
    WHERE attrelid = t.typrelid AND attnum > 0 AND NOT attisdropped))
FROM used JOIN pg_type t ON t.oid = used.type AND t.typtype = 'c'
"""


def read_types(connection: Connection, oids: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """The types that these tables' columns are made of, in the form of ``Version.types``."""
    found: dict[int, list[str]] = {oid: [] for oid in oids}
    for oid, part in connection.execute(_TYPES, (list(oids),)).fetchall():
        found[oid].append(part)
    return {oid: tuple(sorted(parts)) for oid, parts in found.items()}


_COMPOSITE = re.compile(r"(\d+)\(")


def relations_within(version: Version) -> list[int]:
    """The relations of the composite types that the columns are made of: their oids."""
    found = (_COMPOSITE.match(part) for part in version.types or ())
    return [int(composite[1]) for composite in found if composite is not None]


def to_json(version: Version) -> dict[str, Any]:
    """The JSON that the table's record keeps."""
    kept = [list(each) for each in version.partitions]
    types = None if version.types is None else list(version.types)
    return {**version._asdict(), "types": types, "partitions": kept}


def from_json(stored: Mapping[str, Any]) -> Version:
    """Read what :func:`to_json` made."""
    types: Iterable[str] | None = stored.get("types")
    return Version(
        stored["attributes"],
        stored["file"],
        None if types is None else tuple(types),
        tuple(StoredPartition(*each) for each in stored.get("partitions", ())),
        stored.get("publication"),
    )
