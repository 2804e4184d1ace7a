"""SQL that makes lines and keys of rows inside PostgreSQL.

The copy and ``laredo-archive verify --against`` use it. Its lines have the same
bytes as those that ``line.py`` makes from pgoutput's text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from laredo_model.column import Rule, TypeInfo, base_of, rule_of

# SQL expressions for the text of values whose types aren't PostgreSQL's own.
#
# They call the type's output function, as pgoutput does, and never a cast: the owner of a type may
# define casts (CREATE CAST) to text and to json, which ``::text`` and to_json would call with the
# rights of the role that reads. https://www.postgresql.org/docs/current/sql-createcast.html

_OUTPUT = {"e": "enum_out", "c": "record_out", "r": "range_out", "m": "multirange_out"}
"""Output functions by typtype: those of types that are created in SQL are PostgreSQL's own."""

_MOST_DIMENSIONS = 6
"""MAXDIM."""


def of_value(value: str, declared: TypeInfo) -> str:
    """The text of ``value``, an expression of this type."""
    base = base_of(declared)
    output = "array_out" if base.element is not None else _OUTPUT.get(base.typtype)
    # Of these functions' pseudo-types only anyenum takes no domain.
    if output is not None and (base is declared or output != "enum_out"):
        return f"textin({output}({value}))"
    # This role may lack the right to call an extension's function; format calls it, as COPY does.
    return f"CASE num_nonnulls({value}) WHEN 1 THEN format('%s', {value}) END"


def of_elements(value: str, element_sql: Callable[[str], str]) -> str:
    """The JSON array (json) of the array ``value``, made element by element.

    It is slow, and needed only for arrays whose text isn't that of a text[]: those with a delimiter
    of their own, and those of domains over arrays.

    :param element_sql: gives, for an element's expression, the one whose to_json is its value.
    """
    lengths = [f"array_length(s.a, {number})" for number in range(1, _MOST_DIMENSIONS + 1)]
    # Numbers of elements below each dimension. Brackets open and close where an element's number
    # is a multiple of one. Dimensions that the array doesn't have are NULL.
    steps = ", ".join(
        " * ".join([length, *(f"coalesce({deeper}, 1)" for deeper in lengths[number:])])
        for number, length in enumerate(lengths, 1)
    )
    return (
        "(SELECT CASE num_nonnulls(s.a) WHEN 1 THEN coalesce((SELECT string_agg("
        f"repeat('[', d.opened) || coalesce(to_json({element_sql('u.e')})::text, 'null')"
        " || repeat(']', d.closed), ',' ORDER BY u.n)"
        " FROM unnest(s.a) WITH ORDINALITY u(e, n), LATERAL (SELECT"
        " count(*) FILTER (WHERE (u.n - 1) % p.step = 0)::int AS opened,"
        " count(*) FILTER (WHERE u.n % p.step = 0)::int AS closed"
        f" FROM unnest(ARRAY[{steps}]) p(step)) d), '[]')::json END FROM (SELECT {value} AS a) s)"
    )


SESSION = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "search_path": "pg_catalog",
}
"""Settings of every connection that reads rows, for a copy or a stream. Without them, settings by
ALTER DATABASE and ALTER ROLE would change the text of values."""


def session_options() -> str:
    """:data:`SESSION` as libpq's ``options`` connection parameter."""
    return " ".join(f"-c {name}={value}" for name, value in SESSION.items())


class Selected(NamedTuple):
    """A column to select."""

    #: The column's name.
    name: str
    #: The column's type, whose rule defines the JSON.
    type_info: TypeInfo


def identifier(name: str) -> str:
    """``name`` quoted as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def table_name(schema: str, table: str) -> str:
    """The table's name, qualified and quoted."""
    return f"{identifier(schema)}.{identifier(table)}"


def value_sql(column: Selected) -> str:
    """The expression, on the row ``t``, whose to_json is the column's JSON value.

    No value of a type that isn't PostgreSQL's own is cast: see :func:`of_value`.
    """
    name = f"t.{identifier(column.name)}"
    base = base_of(column.type_info)
    if base.element is not None:
        return _array_sql(name, base, base.element)
    return _scalar_sql(name, column.type_info)


def _scalar_sql(value: str, declared: TypeInfo) -> str:
    base = base_of(declared)
    if not base.is_built_in:
        return of_value(value, declared)
    rule = rule_of(base)
    if rule in (Rule.DECIMAL, Rule.NESTING):
        return f"{value}::text"
    if rule is Rule.OID:
        return f"{value}::int8"
    if rule is Rule.JSON and base.name == "json":
        return f"{_without_line_breaks(f'{value}::text')}::json"
    return value


def _array_sql(value: str, array: TypeInfo, declared: TypeInfo) -> str:
    element = base_of(declared)
    rule = rule_of(element)
    if rule is Rule.ARRAY or (array.delimiter != "," and not element.is_built_in):
        return of_elements(value, lambda each: _element_sql(each, declared))
    # The type of an array of domains belongs to the domain's owner, and so do its casts.
    text = f"{value}::text" if array.is_built_in else of_value(value, array)
    if rule in (Rule.DECIMAL, Rule.NESTING) or not element.is_built_in:
        return f"{value}::text[]" if array.is_built_in else f"({text})::text[]"
    if rule is Rule.OID:
        return f"{value}::int8[]" if array.is_built_in else f"({text})::int8[]"
    if rule is Rule.JSON and element.name == "json":
        return f"{_without_line_breaks(text)}::json[]"
    return value


def _element_sql(value: str, declared: TypeInfo) -> str:
    base = base_of(declared)
    if base.element is not None:
        return _array_sql(value, base, base.element)
    return _scalar_sql(value, declared)


def _without_line_breaks(text: str) -> str:
    return f"translate({text}, E'\\n\\r', '  ')"


def key_sql(key: Sequence[Selected]) -> str:
    """The expression (text), on the row ``t``, of a row's key; see ``key.py``."""
    if len(key) == 1:
        return _single_key_sql(key[0])
    parts = " || ',' || ".join(
        f"coalesce(to_json({value_sql(part)})::text, 'null')" for part in key
    )
    return f"'[' || {parts} || ']'"


def lines_sql(
    schema: str,
    table: str,
    columns: Sequence[Selected],
    where: str = "",
    *,
    key: Sequence[Selected] = (),
    only: bool = True,
) -> str:
    """The SELECT of every row's line (json).

    :param where: an SQL condition on the table's columns.
    :param key: the key's columns; with them a row's key (text) is selected before its line.
    :param only: leaves out the rows of inheritance children; False for a partitioned table.
    """
    row = identifier("laredo row")
    values = ", ".join(f"{value_sql(column)} AS {identifier(column.name)}" for column in columns)
    condition = f" WHERE {where}" if where else ""
    selected_key = f"{key_sql(key)} AS key, " if key else ""
    return (
        # With the star it is the sub-select, even if a column has the same name.
        f"SELECT {selected_key}row_to_json({row}.*) AS line "
        f"FROM (SELECT * FROM {'ONLY ' if only else ''}{table_name(schema, table)}{condition}) t, "
        f"LATERAL (SELECT {values}) {row}"
    )


def _single_key_sql(column: Selected) -> str:
    base = base_of(column.type_info)
    if rule_of(base) in _PLAIN_RULES or (base.namespace, base.name) in _PLAIN_TYPES:
        return f"t.{identifier(column.name)}::text"
    return f"coalesce(to_json({value_sql(column)}) #>> '{{}}', 'null')"


_PLAIN_RULES = (Rule.BOOLEAN, Rule.INTEGER, Rule.OID, Rule.FLOAT, Rule.DECIMAL)
_PLAIN_TYPES = {("pg_catalog", name) for name in ("text", "varchar", "uuid")}
