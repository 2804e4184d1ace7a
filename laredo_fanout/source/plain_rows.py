"""How a relation's plain rows lie, as the compiled scan (``_row_scan.c``) is told it.

For each column one letter says how its text becomes JSON. Types without one of
their own are encoded by their rule's function, called from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from laredo_model import fragment, key, line
from laredo_model.rule import Rule, TypeInfo, base_of, rule_of

if TYPE_CHECKING:
    from laredo_fanout.source.row_decoder import Sink

try:
    from laredo_fanout.source._row_scan import PlainRows as PlainRows  # noqa: PLC0414
except ImportError:  # there was no C compiler when this was installed
    COMPILED = False
else:
    COMPILED = True

QUOTED_AS_IS = frozenset({"date", "time", "timetz", "uuid", "inet", "cidr", "macaddr", "interval"})
"""Built-in types whose text never holds what JSON escapes."""


def plain_rows(
    names: Sequence[str], types: Sequence[TypeInfo], key_positions: Sequence[int], sink: Sink
) -> PlainRows | None:
    """How rows with these columns are taken apart, and put into ``sink``.

    None where nothing is compiled, and for rows without a key.
    """
    if not COMPILED or not key_positions:
        return None
    return PlainRows(
        "".join(map(_letter, types)).encode(),
        tuple(line.names_prefix(names)),
        tuple(map(fragment.encoder, types)),
        tuple(key_positions),
        key.of_fragment,
        sink.actions,
        sink.keys,
        sink.lines,
    )


def _letter(type_info: TypeInfo) -> str:  # noqa: PLR0911
    base = base_of(type_info)
    match rule_of(type_info):
        case Rule.INTEGER | Rule.OID:
            return "r"
        case Rule.JSON if base.name == "jsonb":
            return "r"
        case Rule.BOOLEAN:
            return "b"
        case Rule.FLOAT:
            return "f"
        case Rule.DECIMAL:
            return "q"
        case Rule.TIMESTAMP:
            return "z" if base.name == "timestamptz" else "t"
        case Rule.TEXT:
            as_is = base.namespace == "pg_catalog" and base.name in QUOTED_AS_IS
            return "q" if as_is else "s"
        case _:
            return "e"
