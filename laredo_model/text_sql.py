"""SQL expressions for the text of values whose types aren't PostgreSQL's own.

They call the type's output function, as pgoutput does, and never a cast: the owner of a type may
define casts (CREATE CAST) to text and to json, which ``::text`` and to_json would call with the
rights of the role that reads. https://www.postgresql.org/docs/current/sql-createcast.html
"""

from __future__ import annotations

from collections.abc import Callable

from laredo_model.rule import TypeInfo, base_of

_OUTPUT = {"e": "enum_out", "c": "record_out", "r": "range_out", "m": "multirange_out"}
"""By typtype: the output functions of types that are made in SQL are PostgreSQL's own."""

_MOST_DIMENSIONS = 6
"""MAXDIM."""


def of_value(value: str, declared: TypeInfo) -> str:
    """The text of ``value``, an expression of this type."""
    base = base_of(declared)
    output = "array_out" if base.element is not None else _OUTPUT.get(base.typtype)
    # anyenum is the one of these pseudo-types that takes no domain.
    if output is not None and (base is declared or output != "enum_out"):
        return f"textin({output}({value}))"
    # An extension's function need not be one that this role may call; format may, as COPY does.
    return f"CASE num_nonnulls({value}) WHEN 1 THEN format('%s', {value}) END"


def of_elements(value: str, element_sql: Callable[[str], str]) -> str:
    """The JSON array (json) of the array ``value``, made element by element.

    It is slow, and for arrays whose text isn't that of a text[]: those with a delimiter of their
    own, and those of domains over arrays.

    :param element_sql: gives, for an element's expression, the one whose to_json is its value.
    """
    lengths = [f"array_length(s.a, {number})" for number in range(1, _MOST_DIMENSIONS + 1)]
    # Elements below each dimension: what the number of an element is divided by says where
    # brackets stand. Dimensions that the array doesn't have are NULL.
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
