"""The layout of a relation's plain rows, as the compiled scan (``_row_scan.c``) is given it.

For each column its rule's letter defines how its text becomes JSON. What C doesn't do itself is
encoded by the rule's function, called from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from laredo_model import key, line
from laredo_model.column import TypeInfo, rule_of

try:
    from laredo_fanout.decode._row_scan import PlainRows as PlainRows  # noqa: PLC0414
except ImportError:  # there was no C compiler when this was installed
    COMPILED = False
else:
    COMPILED = True


class ChangeSink(Protocol):
    """Sink for a table's decoded changes, in the stream's order."""

    actions: bytearray
    keys: list[bytes]
    lines: list[bytes]


def plain_rows(
    names: Sequence[str], types: Sequence[TypeInfo], key_positions: Sequence[int], sink: ChangeSink
) -> PlainRows | None:
    """Decoder that splits rows with these columns and puts them into ``sink``.

    None where nothing is compiled.
    """
    if not COMPILED:
        return None
    return PlainRows(
        "".join(rule_of(each).value for each in types).encode(),
        tuple(line.names_prefix(names)),
        tuple(map(line.encoder, types)),
        tuple(key_positions),
        key.of_fragment if key_positions else key.digest,
        sink.actions,
        sink.keys,
        sink.lines,
    )
