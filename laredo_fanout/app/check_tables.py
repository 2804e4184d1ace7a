"""Checks of tables, publications and the role that reads them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from laredo_fanout.app import options
from laredo_fanout.app.reload import expand, patterns
from laredo_fanout.errors import SelectDenied
from laredo_fanout.pg_catalog import publication, requirements, table_definitions
from laredo_model.value_sql import identifier

if TYPE_CHECKING:
    from laredo_fanout.config import Config
    from laredo_fanout.pg_catalog.table_definitions import SourceTable
    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.source_options import PublicationOptions, SourceOptions, SourceTableOptions


class Verdict(StrEnum):
    """Result of one check."""

    RIGHT = "ok"
    WARNING = "warning"
    MISSING = "missing"


STORE_IN_USE = "store in use"
"""Subject of the warning that a server runs with this store."""


class ServerFinding(NamedTuple):
    """The result of one check."""

    what: str
    verdict: Verdict
    detail: str
    #: What to run or to do.
    cure: str = ""


def one_line(error: Exception) -> str:
    """The error's text without line breaks."""
    return " ".join(str(error).split())


_OWNERSHIP = """
SELECT pg_has_role(current_user, c.relowner, 'USAGE') FROM pg_class c WHERE c.oid = %s
"""
_MAY_CREATE = "SELECT has_database_privilege(current_database(), 'CREATE')"
# The functions that the planner may call for a SELECT of the table: in expressions and predicates
# of indexes, in extended statistics and partition keys, and in these through operators and the
# checks of domains. PostgreSQL's own functions have no entries in pg_depend. A function is no
# danger if its owner is a superuser, or may read every followed table anyway.
_FUNCTIONS_PLANNED = """
WITH RECURSIVE reached(class, object) AS (
    SELECT d.refclassid, d.refobjid FROM pg_depend d
    WHERE d.objsubid = 0 AND (
        d.classid = 'pg_class'::regclass AND d.objid IN (
            SELECT indexrelid FROM pg_index WHERE indrelid = ANY (%(oids)s::oid[])
            UNION SELECT partrelid FROM pg_partitioned_table WHERE partrelid = ANY (%(oids)s::oid[])
        ) OR d.classid = 'pg_statistic_ext'::regclass AND d.objid IN (
            SELECT oid FROM pg_statistic_ext WHERE stxrelid = ANY (%(oids)s::oid[])
        )
    ) AND d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass)
    UNION
    SELECT next.class, next.object FROM reached r CROSS JOIN LATERAL (
        SELECT d.refclassid, d.refobjid FROM pg_depend d
        WHERE d.classid = r.class AND d.objid = r.object
            AND d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass)
        UNION ALL
        SELECT 'pg_constraint'::regclass, c.oid FROM pg_constraint c
        WHERE r.class = 'pg_type'::regclass AND c.contypid = r.object
    ) next(class, object)
)
SELECT DISTINCT p.oid::regprocedure::text, o.rolname::text
FROM reached r JOIN pg_proc p ON r.class = 'pg_proc'::regclass AND p.oid = r.object
    JOIN pg_roles o ON o.oid = p.proowner
WHERE NOT o.rolsuper AND o.rolname <> current_user AND EXISTS (
    SELECT FROM unnest(%(followed)s::oid[]) f(oid)
    WHERE NOT has_table_privilege(o.oid, f.oid, 'SELECT'))
ORDER BY 1
"""
_OWNS_PUBLICATION = """
SELECT pg_has_role(current_user, pubowner, 'USAGE') FROM pg_publication WHERE pubname = %s
"""


_FOREIGN_TEXT = f"""{table_definitions.USED_TYPES}
SELECT DISTINCT relation::int8, attribute::text, t.typname::text
FROM used JOIN pg_type t ON t.oid = used.type
WHERE t.typnamespace = 'pg_catalog'::regnamespace AND t.oid < 16384 AND t.typtype = 'b'
    AND (t.typname IN ('aclitem', 'money') OR t.typname LIKE 'reg%%')
ORDER BY 1, 2, 3
"""
"""Columns whose text names other objects, which may be renamed, or depends on a setting."""


def expanded(connection: Connection, config: Config) -> Config:
    """The configuration with the tables that its patterns match now."""
    return expand(config, publication.read_matching(connection, patterns(config)).tables)


def of_patterns(connection: Connection, config: Config) -> Iterator[ServerFinding]:
    """Show the tables that each pattern matches."""
    for number, table in enumerate(config.tables):
        if table.is_pattern:
            discovered = publication.read_matching(connection, [table.pattern])
            found = len(discovered.tables)
            name, detail = f"tables[{number}]", f"{table.name}: {found} tables"
            if discovered.unnameable:
                left_out = ", ".join(map(".".join, sorted(discovered.unnameable)))
                why = f"{table.name}: {left_out} left out, as a schema's name must not have a dot"
                cure = publication.unnameable_cure(discovered.unnameable)
                yield ServerFinding(name, Verdict.WARNING, why, cure)
            if found > table.max_tables:
                cure = "raise max_tables, or exclude some"
                yield ServerFinding(name, Verdict.MISSING, detail, cure)
            elif not found:
                cure = "matching tables are followed when they are created"
                yield ServerFinding(name, Verdict.WARNING, detail, cure)
            else:
                yield ServerFinding(name, Verdict.RIGHT, detail)


def findings(
    connection: Connection, config: Config, source: SourceOptions
) -> Iterator[ServerFinding]:
    """Check each table, and the publications of the tables."""
    chosen = source.publication
    wanted = options.source_tables(config)
    known = table_definitions.read_tables(connection, wanted, chosen)
    yield from _functions_planned(connection, known.values())
    appending = [table for table in wanted if table.append_only]
    yield from _publication(connection, chosen, known, [t for t in wanted if not t.append_only])
    if appending:
        yield from _publication(connection, chosen.appends, known, appending)


def _functions_planned(
    connection: Connection, tables: Collection[SourceTable]
) -> Iterator[ServerFinding]:
    """Warn of tables whose copy may run a function of a role that may not read all tables."""
    followed = [table.oid for table in tables]
    for table in tables:
        rows = connection.execute(
            _FUNCTIONS_PLANNED.encode(), {"oids": table.oids, "followed": followed}
        )
        named = [f"{function} of role {owner}" for function, owner in rows]
        if named:
            yield ServerFinding(
                f"functions of table {table.qualified}",
                Verdict.WARNING,
                "an index expression, extended statistics or a partition key depends on"
                f" {', '.join(named)}, who may not read every followed table. When this table is"
                " read, PostgreSQL's planner may call the function with the rights of role"
                f" {connection.info.user}, which may read every followed table",
                "ALTER FUNCTION ... OWNER TO a role that may read them, or drop what depends on it;"
                " or follow the table with a server and a role of its own",
            )


def _publication(
    connection: Connection,
    chosen: PublicationOptions,
    known: dict[str, SourceTable],
    wanted: Sequence[SourceTableOptions],
) -> Iterator[ServerFinding]:
    """Check one publication, and the tables that belong in it."""
    sound, publishable = [], []
    for table in wanted:
        there = known.get(table.qualified)
        problem = requirements.table_problem(table, there, connection.info.user)
        if there is not None and (problem is None or isinstance(problem, SelectDenied)):
            publishable.append(there)
        if problem is not None:
            yield ServerFinding(
                f"table {table.qualified}", Verdict.MISSING, problem.problem, problem.cure
            )
        elif there is not None:
            sound.append(there)
            key = "append-only" if there.append_only else f"key {', '.join(there.key)}"
            yield ServerFinding(f"table {table.qualified}", Verdict.RIGHT, key)
    yield from _of_foreign_text(connection, sound)
    found = publication.read(connection, chosen.name)
    if found is None:
        yield from _no_publication(connection, chosen, publishable)
        return
    missing = [table for table in sound if table.published is None]
    may_alter = chosen.create and _truth(connection, _OWNS_PUBLICATION, chosen.name)
    problem_of_it = publication.problem(found, chosen)
    if problem_of_it is not None:
        yield ServerFinding("publication", Verdict.MISSING, *problem_of_it)
    roots = [table for table in sound if table.partitioned]
    if roots and not found.via_root:
        yield _not_by_root(chosen, roots, may_alter=may_alter)
    for absent in missing:
        if not (absent.partitioned and not found.via_root):
            yield _not_published(connection, chosen.name, absent, may_add=may_alter)
    if problem_of_it is None:
        detail = f"{chosen.name} exists, with {len(sound) - len(missing)} of them"
        if any(not table.version.by_name for table in sound):
            detail += "; it doesn't list each: TRUNCATE, VACUUM FULL or CLUSTER of one costs a copy"
        yield ServerFinding("publication", Verdict.RIGHT, detail)


def _of_foreign_text(
    connection: Connection, tables: Sequence[SourceTable]
) -> Iterator[ServerFinding]:
    """Warn of columns whose text may change without a change of the row."""
    rows = connection.execute(_FOREIGN_TEXT, ([table.oid for table in tables],)).fetchall()
    for table in tables:
        streamed = {column.name for column in table.columns}
        for _, column, type_name in (row for row in rows if row[0] == table.oid):
            if column not in streamed:
                continue
            depends, when = "names another object of the database", "such an object is renamed"
            if type_name == "money":
                depends, when = "depends on lc_monetary", "lc_monetary is changed"
            yield ServerFinding(
                f"column {table.qualified}.{column}",
                Verdict.WARNING,
                f"the text of {type_name} {depends}, which isn't followed",
                f"after {when}: laredo-fanout recopy {table.qualified} --config FILE",
            )


def _not_by_root(
    chosen: PublicationOptions, roots: Sequence[SourceTable], *, may_alter: bool
) -> ServerFinding:
    names = ", ".join(table.qualified for table in roots)
    if may_alter:
        detail = f"{chosen.name} will publish {names} via the partition root"
        return ServerFinding("publication", Verdict.RIGHT, detail)
    detail = f"{chosen.name} doesn't publish {names} via the partition root"
    return ServerFinding(
        "publication", Verdict.MISSING, detail, publication.by_root_statement(chosen)
    )


def _no_publication(
    connection: Connection, chosen: PublicationOptions, publishable: Sequence[SourceTable]
) -> Iterator[ServerFinding]:
    statement = publication.create_statement(chosen, publishable)
    if not chosen.create:
        detail = f"{chosen.name} doesn't exist and publication.create is off"
        yield ServerFinding("publication", Verdict.MISSING, detail, statement)
        return
    foreign = [t.qualified for t in publishable if not _truth(connection, _OWNERSHIP, t.oid)]
    if not _truth(connection, _MAY_CREATE):
        detail = f"{chosen.name} doesn't exist, and role {connection.info.user} may not create it"
        grant = (
            f"GRANT CREATE ON DATABASE {identifier(connection.info.dbname)}"
            f" TO {identifier(connection.info.user)};"
        )
        cure = f"an owner runs: {statement}"
        yield ServerFinding(
            "publication", Verdict.MISSING, detail, cure if foreign else f"{cure}\nor: {grant}"
        )
    elif foreign:
        detail = (
            f"{chosen.name} doesn't exist, and role {connection.info.user} may not add"
            f" {', '.join(foreign)} (not the owner)"
        )
        yield ServerFinding("publication", Verdict.MISSING, detail, f"an owner runs: {statement}")
    else:
        yield ServerFinding("publication", Verdict.RIGHT, f"{chosen.name} will be created")


def _not_published(
    connection: Connection, name: str, table: SourceTable, *, may_add: bool
) -> ServerFinding:
    what = f"table {table.qualified}"
    if may_add and _truth(connection, _OWNERSHIP, table.oid):
        return ServerFinding(what, Verdict.RIGHT, f"will be added to publication {name}")
    statement = f"ALTER PUBLICATION {identifier(name)} ADD TABLE ONLY {table.sql_name};"
    detail = f"it isn't in publication {name}, and role {connection.info.user} may not add it"
    return ServerFinding(what, Verdict.MISSING, detail, f"an owner runs: {statement}")


def _truth(connection: Connection, question: str, *arguments: object) -> bool:
    row = connection.execute(question.encode(), arguments).fetchone()
    return bool(row and row[0])


# The check of the role: it should have no rights but those that the server needs.

_ROLE = """
SELECT current_user::text, rolsuper, rolcreaterole, rolcreatedb
FROM pg_roles WHERE rolname = current_user
"""
_NAME = "laredo"


def role_findings(
    connection: Connection, config: Config, source: SourceOptions
) -> Iterator[ServerFinding]:
    """Check whether the role may do more than it needs; the cure makes a role that may not."""
    role, *powers = connection.execute(_ROLE).fetchone() or ("?", False, False, False)
    words = ("is a superuser", "may create roles", "may create databases")
    excess = [word for word, power in zip(words, powers, strict=True) if power]
    if not excess:
        yield ServerFinding("role", Verdict.RIGHT, f"{role}: not a superuser")
        return
    detail = (
        f"{role} {' and '.join(excess)}: anyone with access to this server's connection has"
        " these rights, and so has a function of a table's owner that a SELECT runs"
    )
    statements = " ".join(_statements(connection, config, source))
    cure = f"as an owner: {statements} Then connect as {_NAME}"
    yield ServerFinding("role", Verdict.WARNING, detail, cure)


def _statements(connection: Connection, config: Config, source: SourceOptions) -> Iterator[str]:
    """The statements for a role with exactly the rights that the server needs."""
    chosen = source.publication
    wanted = options.source_tables(config)
    known = table_definitions.read_tables(connection, wanted, chosen)
    tables = [known[table.qualified] for table in wanted if table.qualified in known]
    yield f"CREATE ROLE {_NAME} LOGIN REPLICATION PASSWORD '...';"
    yield f"GRANT CONNECT ON DATABASE {identifier(connection.info.dbname)} TO {_NAME};"
    for schema in dict.fromkeys(table.schema for table in tables):
        yield f"GRANT USAGE ON SCHEMA {identifier(schema)} TO {_NAME};"
    for table in tables:
        yield f"GRANT SELECT ON {table.sql_name} TO {_NAME};"
    for each in (chosen, chosen.appends):
        inside = [table for table in tables if table.append_only == each.append_only]
        if inside and publication.read(connection, each.name) is None:
            yield publication.create_statement(each, inside)
