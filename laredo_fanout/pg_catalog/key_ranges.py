"""Key ranges, the parts of a table's copy, and the SQL conditions that select them.

Ranges of the key, not of ctid: VACUUM FULL, CLUSTER or a rewriting ALTER moves
rows without a trace in the stream. A range contains the keys above one split
point, up to and including the next.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import psycopg

from laredo_fanout.postgres import key_comparison
from laredo_model.column import Rule, rule_of
from laredo_model.value_sql import Selected, identifier, key_sql

if TYPE_CHECKING:
    from laredo_fanout.pg_catalog.table_definitions import SourceTable
    from laredo_fanout.postgres.connections import Connection

Split = tuple[str, ...]
"""The last key of a range: the text of each column."""

_MOST_RANGES = 4096
_PAGES_A_RANGE = 16
_SAMPLES = (8192, 512)
"""Most pages to read for split points, one by one, within ``_SAMPLE_TIME`` each."""
_LAST_SAMPLE = 128
_SAMPLE_TIME = "10s"
_PAGE_BYTES = 8192
_ROW_BYTES = 100
"""Assumed size of a row in a table that was never analyzed."""


def plan(
    connection: Connection, table: SourceTable, range_bytes: int, range_rows: int | None = None
) -> list[Split]:
    """Split points that cut the table into ranges of about ``range_bytes``, TOAST included.

    With ``range_rows`` a range has at most about that many rows, by PostgreSQL's estimate.

    The split points come from a sample of pages, so the ranges are only similar in size. A table
    without a key, or with a key that the usual operators can't compare, is read in one piece.
    """
    if not table.key or not key_comparison.is_possible(connection, table.selected_key):
        return []
    sizes = connection.execute(
        "SELECT sum(pg_relation_size(oid)), sum(pg_table_size(oid)) FROM unnest(%s::oid[]) t(oid)",
        (table.oids,),
    ).fetchone()
    heap, whole = sizes or (None, None)
    if heap is None or whole is None:
        # It was dropped meanwhile; reading it will fail, and that requests a catalog check.
        return []
    pages = max(1, int(heap) // _PAGE_BYTES)
    wanted = int(whole) // range_bytes + 1
    if range_rows is not None:
        guessed = table.rows_estimated if table.rows_estimated > 0 else int(heap) / _ROW_BYTES
        wanted = max(wanted, int(guessed) // range_rows + 1)
    wanted = min(_MOST_RANGES, wanted)
    if wanted < 2:
        return []
    for most in _SAMPLES:
        with suppress(psycopg.errors.QueryCanceled):
            sample = min(_PAGES_A_RANGE * wanted, most)
            return _splits(connection, table, wanted, sample / pages, _SAMPLE_TIME)
    return _splits(connection, table, wanted, _LAST_SAMPLE / pages, "0")


def _splits(
    connection: Connection, table: SourceTable, wanted: int, share: float, limit: str
) -> list[Split]:
    """Split points of ``wanted`` ranges, from a sample of this share of the table's pages.

    :raises psycopg.errors.QueryCanceled: if that took longer than the ``limit``; ``0``: none.
    """
    percent = min(100.0, 100.0 * share)
    names = [identifier(name) for name in table.key]
    texts = ", ".join(f"format('%s', {name}) AS k{n}" for n, name in enumerate(names))
    keys = ", ".join(f"k{n}" for n in range(len(names)))
    query = (
        f"SELECT {keys} FROM (SELECT {texts}, row_number() OVER (ORDER BY {', '.join(names)}) AS n,"
        f" count(*) OVER () AS total FROM {table.rows_sql}"
        f" TABLESAMPLE SYSTEM ({percent:.6f})) s"
        f" WHERE n % greatest(1, total / {wanted}) = 0 ORDER BY n"
    )
    with connection.transaction():
        connection.execute("SET TRANSACTION READ ONLY")
        connection.execute(f"SET LOCAL statement_timeout = '{limit}'".encode())
        rows = connection.execute(query.encode()).fetchall()
    return [tuple(row) for row in rows][: wanted - 1]


def condition(table: SourceTable, splits: Sequence[Split], number: int) -> str:
    """The SQL condition of range ``number`` (0 up to and including ``len(splits)``)."""
    key = table.selected_key
    parts = []
    if number > 0:
        parts.append(key_comparison.above(key, _literals(key, splits[number - 1])))
    if number < len(splits):
        parts.append(key_comparison.up_to(key, _literals(key, splits[number])))
    return " AND ".join(parts)


def keys_condition(table: SourceTable, keys: Sequence[bytes]) -> str:
    """The SQL condition that selects the rows with these keys."""
    names = ", ".join(f"{identifier(name)}" for name in table.key)
    values = [_key_values(table.selected_key, key) for key in keys]
    if key_comparison.is_built_in(table.selected_key) and None not in values:
        rows = ", ".join(
            f"({', '.join(_literals(table.selected_key, value))})" for value in values if value
        )
        return f"({names}) IN ({rows})"
    # Keys with an array, JSON or an extension's type are compared by their text: slow, and rare.
    texts = ", ".join(quoted(key.decode()) for key in keys)
    return f"(SELECT {key_sql(table.selected_key)} FROM (SELECT {names}) t) IN ({texts})"


def quoted(text: str) -> str:
    """``text`` as an SQL string literal, whatever standard_conforming_strings is."""
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f" E'{escaped}'" if "\\" in text else f"'{escaped}'"


def _literals(key: Sequence[Selected], values: Sequence[str]) -> list[str]:
    return [
        key_comparison.literal(quoted(value), column)
        for column, value in zip(key, values, strict=True)
    ]


def _key_values(key: Sequence[Selected], row_key: bytes) -> list[str] | None:
    """The texts of a row key's values; None if one of them isn't the text of its type."""
    if any(rule_of(column.type_info) in (Rule.ARRAY, Rule.JSON) for column in key):
        return None
    if len(key) == 1:
        return [row_key.decode()]
    values = json.loads(row_key, parse_int=str, parse_float=str)
    return [str(value).lower() if isinstance(value, bool) else value for value in values]
