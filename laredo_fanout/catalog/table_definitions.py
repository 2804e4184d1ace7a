"""Table definitions read from PostgreSQL's catalog: columns, types, keys, and publication.

https://www.postgresql.org/docs/current/catalogs.html
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from laredo_fanout.catalog import partitions as partitions_
from laredo_fanout.catalog import publication as publication_
from laredo_fanout.catalog import table_version as version_
from laredo_fanout.catalog.partitions import Partition
from laredo_fanout.catalog.table_version import Version
from laredo_model import column as column_
from laredo_model.column import Column
from laredo_model.value_sql import Selected, table_name

if TYPE_CHECKING:
    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.source_options import PublicationOptions, SourceTableOptions


class SourceColumn(NamedTuple):
    """A column that the stream carries; ``type_modifier`` is the column's own (-1 in a domain)."""

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
    """Valid, without a predicate and without expressions."""
    mark: str
    """Another one if it was dropped and made again; REINDEX CONCURRENTLY keeps a constraint's."""


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
    pages: int
    rows_estimated: float
    columns: tuple[SourceColumn, ...]
    indexes: tuple[UniqueIndex, ...]
    published: publication_.Published | None
    version: Version
    not_null: frozenset[str] = field(default=frozenset())
    generated: frozenset[str] = field(default=frozenset())
    """The columns that are generated, which a publication may leave out."""
    partitions: tuple[Partition, ...] = ()
    """All partitions below it, at any depth."""
    hidden_by: str | None = None
    """The root that the publication has in this partition's place."""
    is_partition: bool = False
    """True if it is a partition of any table, published or not."""
    append_only: bool = False
    """True if it is configured as append-only: it has no key, whatever its indexes are."""
    changes_published: bool = False
    """True if it is append-only, and in the publication of the other tables as well."""

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
        """The names of the columns that identify a row, in their index's order; empty: none do."""
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
        """The columns as the store, the handshake and manifests describe them."""
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
        """The columns as ``select.lines_sql`` wants them."""
        return [Selected(column.name, column.type_info) for column in self.columns]

    @property
    def selected_key(self) -> list[Selected]:
        """The key's columns, in its order, as ``select.lines_sql`` wants them."""
        by_name = {column.name: column.type_info for column in self.columns}
        return [Selected(name, by_name[name]) for name in self.key]

    @property
    def rows_sql(self) -> str:
        """The FROM item that its own rows are read from."""
        return self.sql_name if self.partitioned else f"ONLY {self.sql_name}"

    @property
    def partitioned(self) -> bool:
        """True if its rows are in partitions."""
        return self.kind == "p"

    @property
    def oids(self) -> list[int]:
        """Its own oid, and its partitions'."""
        return [self.oid, *(each.known.oid for each in self.partitions)]

    def changed_since(self, before: Version) -> str | None:
        """Reason why silent DDL may have changed rows or values; see ``table_version.changed``."""
        return version_.changed(before, self.version, self.partitions, partitioned=self.partitioned)

    def rewritten_since(self, before: Version) -> str | None:
        """Reason why silent DDL may have changed rows or values, without regard to partitions."""
        return version_.changed(before, self.version, (), partitioned=False)


def base_modifier(column: SourceColumn) -> int:
    """The type modifier that holds for the column's values, a domain's own included."""
    info, modifier = column.type_info, column.type_modifier
    while info.base is not None:
        modifier = info.base_modifier if info.base_modifier != -1 else modifier
        info = info.base
    return modifier


_TABLES = """
SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text,
    c.relreplident::text, has_table_privilege(c.oid, 'SELECT'), row_security_active(c.oid),
    c.relpages, c.reltuples, c.relispartition, c.relfilenode::int8
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
    """The tables that exist, by qualified name, all as one snapshot shows them.

    Those that are append-only are read from ``publication.appends``.

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
    made_of = version_.read_types(connection, oids)
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
    """The types with these oids, and all that they are made of."""
    rows = connection.execute(column_.TYPES_SQL, (list(oids),)).fetchall()
    return column_.type_infos(column_.TypeRow(*row) for row in rows)


def _table(
    row: tuple[Any, ...],
    attributes: Sequence[Sequence[Any]],
    types: dict[int, column_.TypeInfo],
    streams: Sequence[str],
    known: dict[str, Any],
) -> SourceTable:
    """``streams``: the values of attgenerated with which a column is published without a list."""
    oid, schema, name, kind, persistence, identity, may_select, secured, *rest = row
    pages, rows, is_partition = rest
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
        pages=pages,
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
