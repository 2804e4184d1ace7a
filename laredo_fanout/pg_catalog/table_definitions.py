"""Table definitions in PostgreSQL's catalog: columns, types, keys, and marks of their version.

https://www.postgresql.org/docs/current/catalogs.html
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from laredo_fanout.pg_catalog import partitions as partitions_
from laredo_fanout.pg_catalog import publication as publication_
from laredo_fanout.pg_catalog.partitions import Partition, StoredPartition
from laredo_model import column as column_
from laredo_model.column import Column
from laredo_model.value_sql import Selected, table_name

if TYPE_CHECKING:
    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.source_options import PublicationOptions, SourceTableOptions

# The version of a table: marks in the catalog by which a later check notices silent DDL.
#
# Silent DDL is a statement that changes values or moves rows without a message in the stream: ALTER
# TYPE ... USING, a renamed enum label, an attribute added to a composite type; ATTACH, DETACH or
# TRUNCATE of a partition; a publication that was narrowed for a while.
#
# An object that was dropped and created between two checks has the same name again. So each mark
# is a number that PostgreSQL never assigns twice: a column's attnum, the oid of the key's
# constraint or index, the xid that wrote a row of the catalog. Statements that change no rows must
# not change a mark, and GRANT, OWNER TO and SET STATISTICS write most rows that belong to a table.


class Version(NamedTuple):
    """The marks of one catalog check."""

    attributes: str
    """The xids that wrote the table's pg_attribute rows."""
    file: int
    """Number of the file that contains the rows."""
    types: tuple[str, ...]
    """The labels of enums and the attributes of composites among the types of the columns."""
    partitions: tuple[StoredPartition, ...]
    publication: str | None
    """The xid that last wrote the publication's own row; None if there was no publication."""
    publication_owner: int | None
    owner_alone: bool
    """True if OWNER TO wrote the publication's row, as the first command of its transaction."""
    columns: tuple[int, ...] = ()
    """The numbers (attnum) of the published columns."""
    key: str = ""
    """The oid of the key's constraint, or else of its index, and the numbers of its columns."""
    schema: str = ""
    """The publication's entry for the table's schema; empty if it has none."""
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
        return "its key was dropped and created again"
    return (
        _rewritten(before, now)
        or _type_changed(before.types, now.types)
        or (partitions_.moved(before.partitions, partitions) if partitioned else None)
    )


def _narrowed(before: Version, now: Version) -> bool:
    """True if the publication may have left out changes in between.

    OWNER TO writes the same row as SET (publish = ...). If OWNER TO wrote it last, the catalog has
    no trace of an earlier SET, and we assume that there was none.
    """
    if now.publication == before.publication:
        return False
    owners = before.publication_owner, now.publication_owner
    return not (now.owner_alone and owners[0] is not None and owners[0] != owners[1])


def _rewritten(before: Version, now: Version) -> str | None:
    """Reason why values of the table's own columns may have changed, or None.

    ALTER TYPE ... USING writes pg_attribute rows and a new file. Changed rows alone are harmless
    (SET STATISTICS), and so is a new file (VACUUM FULL, TRUNCATE), unless SET UNLOGGED and then SET
    LOGGED may have created it: changes between the two aren't in the WAL.
    """
    altered = now.attributes != before.attributes
    if now.columns != before.columns:
        return "a column was dropped, and another one has its name now"
    if now.file != before.file and altered:
        return "its rows were rewritten"
    if now.file != before.file and not now.by_name:
        return "its rows are in another file, and may have been changed while it was unlogged"
    return None


def _type_changed(before: Sequence[str], now: Sequence[str]) -> str | None:
    """Reason why a type may print stored values differently, or None.

    An enum may get more labels; earlier labels must still be the same rows in the catalog.
    """
    if set(now).issuperset(before):
        return None
    return "a type of its columns, or within one, was changed"


USED_TYPES = """
WITH RECURSIVE used(relation, attribute, type) AS (
    SELECT attrelid, attname, atttypid FROM pg_attribute
    WHERE attrelid = ANY(%s) AND attnum > 0 AND NOT attisdropped
    UNION
    SELECT used.relation, used.attribute, part.type FROM used
    JOIN pg_type t ON t.oid = used.type
    CROSS JOIN LATERAL (
        SELECT unnest(ARRAY[t.typelem, t.typbasetype])
        UNION ALL SELECT rngsubtype FROM pg_range WHERE t.oid IN (rngtypid, rngmultitypid)
        UNION ALL SELECT atttypid FROM pg_attribute
        WHERE attrelid = t.typrelid AND attnum > 0 AND NOT attisdropped
    ) AS part(type)
    WHERE part.type <> 0
)
"""
"""The beginning of a query about the types of each column of some tables, at any depth."""
# A renamed label has another row, of another xid. relnatts counts dropped attributes too.
_TYPE_MARKS = f"""{USED_TYPES}
SELECT relation::int8, format('%%s@%%s=%%s', e.oid, e.xmin, e.enumlabel)
FROM used JOIN pg_enum e ON e.enumtypid = used.type
UNION
SELECT relation::int8, format('%%s@%%s(%%s)', c.oid, c.relnatts, (
    SELECT string_agg(format('%%s:%%s', attnum, atttypid), ',' ORDER BY attnum) FROM pg_attribute
    WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped))
FROM used JOIN pg_type t ON t.oid = used.type AND t.typtype = 'c'
JOIN pg_class c ON c.oid = t.typrelid
"""


def read_type_marks(connection: Connection, oids: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """The marks of the types of these tables' columns, in the form of ``Version.types``."""
    found: dict[int, list[str]] = {oid: [] for oid in oids}
    for oid, part in connection.execute(_TYPE_MARKS, (list(oids),)).fetchall():
        found[oid].append(part)
    return {oid: tuple(sorted(parts)) for oid, parts in found.items()}


_COMPOSITE = re.compile(r"(\d+)@\d+\(")


def relations_within(version: Version) -> list[int]:
    """The oids of the relations of composite types among the types of the columns."""
    found = (_COMPOSITE.match(part) for part in version.types)
    return [int(composite[1]) for composite in found if composite is not None]


def to_json(version: Version) -> dict[str, Any]:
    """The JSON that the table's record keeps."""
    return {**version._asdict(), "partitions": [list(each) for each in version.partitions]}


def from_json(stored: Mapping[str, Any]) -> Version:
    """Parse the result of :func:`to_json`."""
    kept = {name: tuple(stored[name]) for name in ("types", "columns")}
    partitions = tuple(StoredPartition(*each) for each in stored["partitions"])
    return Version(**{**stored, **kept, "partitions": partitions})


class SourceColumn(NamedTuple):
    """A published column; ``type_modifier`` is the column's own (-1 for a domain)."""

    name: str
    type_info: column_.TypeInfo
    type_modifier: int
    nullable: bool


class UniqueIndex(NamedTuple):
    """A unique index over plain columns; ``columns`` are its key columns, in its order."""

    name: str
    columns: tuple[str, ...]
    primary: bool
    identity: bool
    immediate: bool
    whole: bool
    """True for a valid index without a predicate and without expressions."""
    mark: str
    """Differs if the index was dropped and created again; REINDEX CONCURRENTLY keeps that of a
    constraint."""


@dataclass(frozen=True)
class SourceTable:
    """One table of a catalog snapshot."""

    oid: int
    schema: str
    name: str
    kind: str
    """pg_class.relkind: r is a plain table, p a partitioned one."""
    persistence: str
    replica_identity: str
    """pg_class.relreplident: d default, i index, f full, n nothing."""
    may_select: bool
    row_security: bool
    """True if row-level security would hide rows from this role."""
    rows_estimated: float
    columns: tuple[SourceColumn, ...]
    indexes: tuple[UniqueIndex, ...]
    published: publication_.Published | None
    version: Version
    not_null: frozenset[str] = field(default=frozenset())
    generated: frozenset[str] = field(default=frozenset())
    """Generated columns, which a publication may leave out."""
    partitions: tuple[Partition, ...] = ()
    """All partitions below the table, at any depth."""
    hidden_by: str | None = None
    """The root that is published instead of this partition."""
    is_partition: bool = False
    """True for a partition of any table, published or not."""
    append_only: bool = False
    """True if the table is configured as append-only: it has no key, even if it has indexes."""
    changes_published: bool = False
    """True if the table is append-only, and in the publication of the other tables too."""

    @property
    def qualified(self) -> str:
        """``schema.name``."""
        return f"{self.schema}.{self.name}"

    @property
    def sql_name(self) -> str:
        """The quoted name."""
        return table_name(self.schema, self.name)

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the columns that identify a row, in their index's order; empty for none."""
        index = self.key_index
        return index.columns if index is not None else ()

    @property
    def key_index(self) -> UniqueIndex | None:
        """The replica identity's index; with REPLICA IDENTITY FULL the primary key, or else the
        smallest unique index over columns that are never null."""
        if self.append_only:
            return None
        usable = [index for index in self.indexes if index.whole and index.immediate]
        if self.replica_identity == "i":
            return next((index for index in usable if index.identity), None)
        primary = next((index for index in usable if index.primary), None)
        if primary is not None or self.replica_identity != "f":
            return primary if self.replica_identity in "df" else None
        never_null = [index for index in usable if self.not_null.issuperset(index.columns)]
        return min(never_null, key=lambda index: (len(index.columns), index.columns), default=None)

    @property
    def described(self) -> tuple[Column, ...]:
        """The columns as they are described in the store, the handshake and manifests."""
        ordinals = {name: ordinal for ordinal, name in enumerate(self.key, 1)}
        return tuple(
            Column(
                column.name,
                column_.base_of(column.type_info).name,
                base_modifier(column),
                column.nullable,
                ordinal,
                ordinals.get(column.name),
            )
            for ordinal, column in enumerate(self.columns, 1)
        )

    @property
    def selected(self) -> list[Selected]:
        """The columns for ``value_sql.lines_sql``."""
        return [Selected(column.name, column.type_info) for column in self.columns]

    @property
    def selected_key(self) -> list[Selected]:
        """The key's columns, in its order, for ``value_sql.lines_sql``."""
        by_name = {column.name: column.type_info for column in self.columns}
        return [Selected(name, by_name[name]) for name in self.key]

    @property
    def rows_sql(self) -> str:
        """The FROM item that selects the table's own rows."""
        return self.sql_name if self.partitioned else f"ONLY {self.sql_name}"

    @property
    def partitioned(self) -> bool:
        """True if the table's rows are in partitions."""
        return self.kind == "p"

    @property
    def oids(self) -> list[int]:
        """The oids of the table and its partitions."""
        return [self.oid, *(each.known.oid for each in self.partitions)]

    def changed_since(self, before: Version) -> str | None:
        """Reason why silent DDL may have changed rows or values; see :func:`changed`."""
        return changed(before, self.version, self.partitions, partitioned=self.partitioned)

    def rewritten_since(self, before: Version) -> str | None:
        """Reason why silent DDL may have changed rows or values, without regard to partitions."""
        return changed(before, self.version, (), partitioned=False)


def base_modifier(column: SourceColumn) -> int:
    """The type modifier that applies to the column's values, that of a domain included."""
    info, modifier = column.type_info, column.type_modifier
    while info.base is not None:
        modifier = info.base_modifier if info.base_modifier != -1 else modifier
        info = info.base
    return modifier


_TABLES = """
SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text,
    c.relreplident::text, has_table_privilege(c.oid, 'SELECT'), row_security_active(c.oid),
    c.reltuples, c.relispartition, c.relfilenode::int8
FROM unnest(%s::text[], %s::text[]) AS wanted(schema, name)
JOIN pg_namespace n ON n.nspname = wanted.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name
"""

_ATTRIBUTES = """
SELECT attrelid::int8, attname::text, atttypid::int8, atttypmod, attnotnull,
    attgenerated::text, attnum::int4, xmin::text
FROM pg_attribute WHERE attrelid = ANY(%s) AND attnum > 0 AND NOT attisdropped
ORDER BY attrelid, attnum
"""

_INDEXES = """
SELECT i.indrelid::int8, c.relname::text,
    (SELECT array_agg(a.attname::text ORDER BY k.n)
     FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, n)
     JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
     WHERE k.n <= i.indnkeyatts),
    i.indisprimary, i.indisreplident, i.indimmediate,
    i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL,
    coalesce(
        (SELECT format('constraint %%s: %%s', o.oid, i.indkey) FROM pg_constraint o
         WHERE o.conrelid = i.indrelid AND o.conindid = i.indexrelid AND o.contype IN ('p', 'u')),
        format('index %%s: %%s', i.indexrelid, i.indkey))
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = ANY(%s) AND i.indisunique AND i.indexprs IS NULL ORDER BY i.indexrelid
"""


def read_tables(
    connection: Connection, tables: Iterable[SourceTableOptions], publication: PublicationOptions
) -> dict[str, SourceTable]:
    """The tables that exist, by qualified name, all from one snapshot.

    Append-only tables are members of ``publication.appends``.

    :raises psycopg.Error: if the catalog can't be read.
    """
    wanted = list(tables)
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return _read(connection, wanted, publication)


def _read(
    connection: Connection, wanted: Sequence[SourceTableOptions], publication: PublicationOptions
) -> dict[str, SourceTable]:
    appending = {(table.schema, table.name) for table in wanted if table.append_only}
    found = connection.execute(
        _TABLES, ([table.schema for table in wanted], [table.name for table in wanted])
    ).fetchall()
    oids = [row[0] for row in found]
    attributes = _grouped(connection.execute(_ATTRIBUTES, (oids,)).fetchall())
    indexes = _grouped(connection.execute(_INDEXES, (oids,)).fetchall())
    main = publication_.membership(connection, publication.name, oids)
    appends = (
        publication_.membership(connection, publication.appends.name, oids) if appending else main
    )
    types = read_types(connection, {row[1] for rows in attributes.values() for row in rows})
    made_of = read_type_marks(connection, oids)
    below = partitions_.read(connection, oids)
    tables = {}
    for oid, *row in found:
        of_table = attributes.get(oid, [])
        append_only = tuple(row[:2]) in appending
        inside = appends if append_only else main
        known = {
            "indexes": tuple(
                UniqueIndex(name, tuple(names or ()), *rest)
                for name, names, *rest in indexes.get(oid, [])
            ),
            "published": inside.tables.get(oid),
            "version": Version(
                ",".join(attribute[-1] for attribute in of_table),
                row[-1],
                made_of[oid],
                tuple(each.known for each in below.get(oid, ())),
                *inside.altered,
            ),
            "partitions": below.get(oid, ()),
            "hidden_by": inside.hidden.get(oid),
            "append_only": append_only,
            "changes_published": append_only and oid in main.tables,
        }
        streams = ("", "s") if inside.generated else ("",)
        table = _table((oid, *row[:-1]), of_table, types, streams, known)
        tables[table.qualified] = table
    return tables


def read_types(connection: Connection, oids: Iterable[int]) -> dict[int, column_.TypeInfo]:
    """The types with these oids, and all types that they are made of."""
    rows = connection.execute(column_.TYPES_SQL, (list(oids),)).fetchall()
    return column_.type_infos(column_.TypeRow(*row) for row in rows)


def _table(
    row: tuple[Any, ...],
    attributes: Sequence[Sequence[Any]],
    types: dict[int, column_.TypeInfo],
    streams: Sequence[str],
    known: dict[str, Any],
) -> SourceTable:
    """The table of a row; without a column list, columns with an attgenerated in ``streams`` are
    published."""
    oid, schema, name, kind, persistence, identity, may_select, secured, *rest = row
    rows, is_partition = rest
    published = known["published"]
    streamed = None if published is None else published.columns
    carried = [
        attribute
        for attribute in attributes
        if (attribute[4] in streams if streamed is None else attribute[0] in streamed)
    ]
    table = SourceTable(
        oid=oid,
        schema=schema,
        name=name,
        kind=kind,
        persistence=persistence,
        replica_identity=identity,
        may_select=may_select,
        row_security=secured,
        rows_estimated=rows,
        is_partition=is_partition,
        columns=tuple(
            SourceColumn(column, types[type_oid], modifier, not not_null)
            for column, type_oid, modifier, not_null, *_ in carried
        ),
        generated=frozenset(attribute[0] for attribute in attributes if attribute[4]),
        not_null=frozenset(attribute[0] for attribute in attributes if attribute[3]),
        **known,
    )
    index = table.key_index
    version = table.version._replace(
        columns=tuple(attribute[5] for attribute in carried),
        key=index.mark if index is not None else "",
        schema=published.by_schema if published is not None else "",
        by_name=published is None or bool(published.membership),
    )
    return replace(table, version=version)


def _grouped(rows: Iterable[Sequence[Any]]) -> dict[int, list[Sequence[Any]]]:
    groups: dict[int, list[Sequence[Any]]] = {}
    for table, *rest in rows:
        groups.setdefault(table, []).append(rest)
    return groups
