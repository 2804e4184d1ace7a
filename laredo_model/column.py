"""A table's columns, described well enough to restore every value's exact type."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from laredo_model.errors import BadColumn


@dataclass(frozen=True, slots=True)
class Column:
    """One column, as PostgreSQL's catalog describes it."""

    #: pg_attribute.attname.
    name: str
    #: pg_type.typname, with ``_`` in front for an array (``_int4``); a domain's base type.
    type: str
    #: pg_attribute.atttypmod, such as a numeric's precision and scale; -1 for none.
    type_modifier: int = -1
    #: Whether the column may be NULL.
    nullable: bool = True
    #: The column's number in the row's line, from 1.
    ordinal: int = 0
    #: The column's number in the key, from 1; None outside the key.
    key_ordinal: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON object that manifests and stores keep."""
        return {
            "name": self.name,
            "type": self.type,
            "type_modifier": self.type_modifier,
            "nullable": self.nullable,
            "ordinal": self.ordinal,
            "key_ordinal": self.key_ordinal,
        }


def from_json(described: Mapping[str, Any]) -> Column:
    """Parse the object that :meth:`Column.to_json` makes; unknown fields are ignored.

    :raises BadColumn: if name or type is missing, or a part has the wrong type.
    """
    name, type_name = described.get("name"), described.get("type")
    if not isinstance(name, str) or not isinstance(type_name, str):
        raise BadColumn(f"a column needs a name and a type, both strings: {dict(described)!r}")
    key_ordinal = described.get("key_ordinal")
    try:
        return Column(
            name,
            type_name,
            int(described.get("type_modifier", -1)),
            bool(described.get("nullable", True)),
            int(described.get("ordinal", 0)),
            None if key_ordinal is None else int(key_ordinal),
        )
    except (TypeError, ValueError, OverflowError) as wrong:
        raise BadColumn(f"column {name!r}: {wrong}") from wrong


def key_columns(columns: Iterable[Column]) -> list[Column]:
    """The key's columns, in the key's (its index's) order."""
    return sorted(
        (column for column in columns if column.key_ordinal is not None),
        key=lambda column: column.key_ordinal or 0,
    )
