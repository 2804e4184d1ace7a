"""Comparing keys in SQL, whatever their types are and whoever made them.

Sessions have only pg_catalog in their search_path, where the operators of an extension's types
aren't: they are named with the type's schema, where CREATE EXTENSION puts both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from laredo_model.rule import TypeInfo, base_of
from laredo_model.select import Selected, identifier

if TYPE_CHECKING:
    from laredo_fanout.source.session import Connection


def above(key: Sequence[Selected], values: Sequence[str]) -> str:
    """The condition that a row's key lies above these values (SQL expressions)."""
    return _compared(key, values, ">", ">")


def up_to(key: Sequence[Selected], values: Sequence[str]) -> str:
    """The condition that a row's key lies below these values or equals them."""
    return _compared(key, values, "<", "<=")


def is_possible(connection: Connection, key: Sequence[Selected]) -> bool:
    """Whether the types' operators are called as is usual; hstore's aren't.

    :raises psycopg.Error: if the catalog can't be read.
    """
    for column in key:
        schema = _operators_of(column.type_info)
        if schema is None:
            continue
        name = f"{identifier(schema)}.{identifier(base_of(column.type_info).name)}"
        wanted = [f"{identifier(schema)}.{each}({name},{name})" for each in ("<", "<=", "=", ">")]
        row = connection.execute(
            "SELECT bool_and(to_regoperator(o) IS NOT NULL) FROM unnest(%s::text[]) AS w(o)",
            (wanted,),
        ).fetchone()
        if row is None or not row[0]:
            return False
    return True


def is_built_in(key: Sequence[Selected]) -> bool:
    """Whether pg_catalog has the operators of all of its types."""
    return all(_operators_of(column.type_info) is None for column in key)


def _compared(
    key: Sequence[Selected], values: Sequence[str], operator: str, of_the_last: str
) -> str:
    names = [identifier(column.name) for column in key]
    if is_built_in(key):
        # One row comparison is what an index over several columns is used for.
        return f"({', '.join(names)}) {of_the_last} ({', '.join(values)})"
    schemas = [_operators_of(column.type_info) for column in key]
    parts = list(zip(names, values, schemas, strict=True))
    name, value, schema = parts.pop()
    condition = f"{name} {_named(schema, of_the_last)} {value}"
    for name, value, schema in reversed(parts):
        condition = (
            f"({name} {_named(schema, operator)} {value}"
            f" OR ({name} {_named(schema, '=')} {value} AND {condition}))"
        )
    return condition


def _named(schema: str | None, operator: str) -> str:
    return operator if schema is None else f"OPERATOR({identifier(schema)}.{operator})"


def _operators_of(type_info: TypeInfo) -> str | None:
    """The schema of a type's operators; None: pg_catalog, as of enums, arrays and ranges."""
    base = base_of(type_info)
    if base.namespace == "pg_catalog" or base.typtype != "b" or base.element is not None:
        return None
    return base.namespace
