"""Rows, columns and checksums of the golden archive ``types`` from a real PostgreSQL.

``python -m tests.golden.postgres`` writes the states and the columns of ``types`` anew.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from tests.support.golden.truth import TRUTHS
from tests.support.postgres import data_directory

Connection = psycopg.Connection[Any]
TYPES = TRUTHS / "types"
STATES = {"1-0_10": "0_table.sql", "1-0_20": "1_changed.sql"}
"""Which statements lead to which boundary."""

_SESSION = """
SET client_encoding = 'UTF8'; SET "DateStyle" = 'ISO'; SET "IntervalStyle" = 'postgres';
SET "TimeZone" = 'UTC'; SET extra_float_digits = 3; SET bytea_output = 'hex';
SET lc_monetary = 'C'; SET search_path = public, pg_catalog
"""
_COLUMNS = """
SELECT attname::text, coalesce(base.typname, type.typname)::text,
    CASE WHEN type.typbasetype = 0 THEN atttypmod ELSE type.typtypmod END
FROM pg_attribute JOIN pg_type type ON type.oid = atttypid
LEFT JOIN pg_type base ON base.oid = type.typbasetype
WHERE attrelid = 'public.every_type'::regclass AND attnum > 0 ORDER BY attnum
"""
_CHECKSUM = """
WITH lines AS (
    SELECT decode(md5(convert_to(line, 'UTF8')), 'hex') AS digest FROM unnest(%s::text[]) line
), bytes AS (
    SELECT count(*) AS rows, sum(get_byte(digest, place)) * 256::numeric ^ (15 - place) AS total
    FROM lines, generate_series(0, 15) place GROUP BY place
)
SELECT coalesce(max(rows), 0), coalesce(sum(total), 0) %% 2::numeric ^ 128 FROM bytes
"""


def states(connection: Connection) -> dict[str, list[str]]:
    """The lines of ``types`` at its boundaries; the connection's database must be empty."""
    connection.execute(_SESSION)
    found = {}
    for name, statements in STATES.items():
        connection.execute(_text(TYPES / statements))
        rows = connection.execute(_text(TYPES / "lines.sql")).fetchall()
        found[name] = [row[0] for row in rows]
    return found


def columns(connection: Connection) -> list[list[Any]]:
    """Name, type and type modifier of the table's columns."""
    return [list(row) for row in connection.execute(_COLUMNS).fetchall()]


def checksum(connection: Connection, lines: Sequence[str]) -> tuple[int, str]:
    """Row count and state checksum of lines, byte by byte of their md5 in numeric."""
    row = connection.execute(_CHECKSUM, [list(lines)]).fetchone()
    assert row is not None
    return row[0], f"{int(row[1]):032x}"


def _text(path: Path) -> sql.SQL:
    return sql.SQL(path.read_text())  # type: ignore[arg-type]  # our own files


def write() -> None:
    """The files of ``types``, anew."""
    with data_directory() as data, EmbeddedPostgres(data) as server, server.connect() as connection:
        for name, lines in states(connection).items():
            (TYPES / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        path = TYPES / "archive.json"
        described = json.loads(path.read_text())
        described["columns"] = columns(connection)
        path.write_text(_described(described))


def _described(described: dict[str, Any]) -> str:
    members = []
    for name, value in described.items():
        if isinstance(value, list) and value:
            items = ",\n  ".join(json.dumps(item) for item in value)
            members.append(f'"{name}": [\n  {items}\n ]')
        else:
            members.append(f'"{name}": {json.dumps(value)}')
    return "{\n " + ",\n ".join(members) + "\n}\n"


if __name__ == "__main__":
    write()
    sys.stdout.write(f"{TYPES}\n")
