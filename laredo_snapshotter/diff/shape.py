"""Whether two descriptions of a table give the same lines and keys."""

from collections.abc import Sequence

from laredo_model.column import Column


def same_shape(one: Sequence[Column] | None, other: Sequence[Column] | None) -> bool:
    """Names, types, their order and the key; whether a column may be NULL doesn't matter."""
    return one is not None and other is not None and _shape(one) == _shape(other)


def _shape(columns: Sequence[Column]) -> list[tuple[str, str, int, int | None]]:
    return [
        (column.name, column.type, column.type_modifier, column.key_ordinal)
        for column in sorted(columns, key=lambda column: column.ordinal)
    ]
