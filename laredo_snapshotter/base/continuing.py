"""Decision if a stream's changes continue the archive's epoch, or why they begin another one."""

from collections.abc import Sequence

from laredo_archive.manifest.rules import Head
from laredo_model.column import Column
from laredo_model.position import History


def why_new_epoch(
    head: Head | None, columns: tuple[Column, ...], history: History, sent_reason: str
) -> str | None:
    """Reason why a base begins a new epoch after ``head``; None if there is nothing before it.

    ``sent_reason`` is the server's.
    """
    if head is None:
        return None
    if head.history != history:
        return f"the history was {head.history} and is {history} now" + (
            f": {sent_reason}" if sent_reason else ""
        )
    if not same_shape(columns, head.columns):
        return "the table's columns changed"
    return sent_reason or "the server gave no reason"


def same_shape(one: Sequence[Column] | None, other: Sequence[Column] | None) -> bool:
    """Names, types, their order and the key; whether a column may be NULL doesn't matter."""
    return one is not None and other is not None and _shape(one) == _shape(other)


def _shape(columns: Sequence[Column]) -> list[tuple[str, str, int, int | None]]:
    return [
        (column.name, column.type, column.type_modifier, column.key_ordinal)
        for column in sorted(columns, key=lambda column: column.ordinal)
    ]
