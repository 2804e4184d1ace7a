"""The check of the role: it should have no rights but those that the server needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from laredo_fanout.app import options
from laredo_fanout.app.check import ServerFinding, Verdict
from laredo_fanout.catalog import publication, table_definitions
from laredo_model.value_sql import identifier

if TYPE_CHECKING:
    from laredo_fanout.config import Config
    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.source_options import SourceOptions

_ROLE = """
SELECT current_user::text, rolsuper, rolcreaterole, rolcreatedb
FROM pg_roles WHERE rolname = current_user
"""
_NAME = "laredo"


def findings(
    connection: Connection, config: Config, source: SourceOptions
) -> Iterator[ServerFinding]:
    """Check whether the role may do more than it needs; the cure makes a role that may not."""
    role, *powers = connection.execute(_ROLE).fetchone() or ("?", False, False, False)
    words = ("a superuser", "may make roles", "may make databases")
    excess = [word for word, power in zip(words, powers, strict=True) if power]
    if not excess:
        yield ServerFinding("role", Verdict.RIGHT, f"{role}: no superuser")
        return
    detail = (
        f"{role} is {' and '.join(excess)}: anyone with access to this server's connection has"
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
