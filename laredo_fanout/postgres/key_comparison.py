"""SQL conditions that compare keys of any types, and run no code of untrusted roles.

The search_path is pg_catalog alone. The operators of an extension's types are named with the type's
schema, where CREATE EXTENSION creates both. Any role that may write to that schema may create
operators in it, so only those of the type's btree operator class are called, which a superuser
created. A value is cast to the type below every domain, because the domain's owner wrote its
CHECK. A key whose type may contain a domain isn't compared at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from laredo_model.column import TypeInfo, base_of
from laredo_model.value_sql import Selected, identifier

if TYPE_CHECKING:
    from laredo_fanout.postgres.connections import Connection

_USUAL = """
SELECT bool_and(EXISTS (
    SELECT FROM pg_opclass c JOIN pg_am m ON m.oid = c.opcmethod AND m.amname = 'btree'
    JOIN pg_amop o ON o.amopfamily = c.opcfamily
    WHERE c.opcdefault AND c.opcintype = %(type)s
        AND o.amoplefttype = c.opcintype AND o.amoprighttype = c.opcintype
        AND o.amopopr = to_regoperator(w.named)))
FROM unnest(%(wanted)s::text[]) AS w(named)
"""


def above(key: Sequence[Selected], values: Sequence[str]) -> str:
    """The condition that a row's key is above these values (SQL expressions)."""
    return _compared(key, values, ">", ">")


def up_to(key: Sequence[Selected], values: Sequence[str]) -> str:
    """The condition that a row's key is at most these values (SQL expressions)."""
    return _compared(key, values, "<", "<=")


def is_possible(connection: Connection, key: Sequence[Selected]) -> bool:
    """True if the key's types have operators of the usual names, which run no other role's code.

    hstore's operators have other names.

    :raises psycopg.Error: if the catalog can't be read.
    """
    for column in key:
        base = base_of(column.type_info)
        if _is_plain(base):
            continue
        if base.typtype != "b" or base.element is not None:
            return False
        schema = identifier(base.namespace)
        name = f"{schema}.{identifier(base.name)}"
        wanted = [f"{schema}.{each}({name},{name})" for each in ("<", "<=", "=", ">")]
        row = connection.execute(_USUAL, {"type": base.oid, "wanted": wanted}).fetchone()
        if row is None or not row[0]:
            return False
    return True


def is_built_in(key: Sequence[Selected]) -> bool:
    """True if pg_catalog has the operators of all key types, and their values run no code."""
    return all(_is_plain(base_of(column.type_info)) for column in key)


def literal(text: str, column: Selected) -> str:
    """The SQL expression of a key column's value, given its text as an SQL string literal."""
    base = base_of(column.type_info)
    return f"{text}::{identifier(base.namespace)}.{identifier(base.name)}"


def _compared(
    key: Sequence[Selected], values: Sequence[str], operator: str, of_the_last: str
) -> str:
    names = [identifier(column.name) for column in key]
    if is_built_in(key):
        # A row comparison can use an index over several columns.
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
    """The schema of a type's operators; None for pg_catalog, which has those of enums too."""
    base = base_of(type_info)
    return None if _is_plain(base) else base.namespace


def _is_plain(base: TypeInfo) -> bool:
    return base.is_built_in or base.typtype == "e"
