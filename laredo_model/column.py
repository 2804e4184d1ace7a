"""Columns of a table, and the JSON rule of each PostgreSQL type.

A line is made in two ways, by the copy's SQL (``value_sql.py``) and from pgoutput's
text (``line.py``); both follow the rule named here, and a property test holds
their bytes equal for every type.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from laredo_model.errors import BadColumn, ModelError

# A table's columns, described well enough to restore every value's exact type.


@dataclass(frozen=True, slots=True)
class Column:
    """One column, as PostgreSQL's catalog describes it."""

    #: pg_attribute.attname.
    name: str
    #: pg_type.typname, with ``_`` in front for an array (``_int4``); a domain's base type.
    type: str
    #: pg_attribute.atttypmod, such as a numeric's precision and scale; -1 for none.
    type_modifier: int = -1
    #: True if the column may be NULL.
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
    """The key's columns, in the order of its index."""
    return sorted(
        (column for column in columns if column.key_ordinal is not None),
        key=lambda column: column.key_ordinal or 0,
    )


class Rule(Enum):
    """Rule for writing a type's values in JSON; C has its letter (``_plain_values.h``)."""

    BOOLEAN = "b"
    """true or false; pgoutput sends t and f."""
    INTEGER = "i"
    """A number with exact digits."""
    OID = "o"
    """A number, which to_json would quote."""
    FLOAT = "f"
    """A number as PostgreSQL prints it; NaN and the infinities are strings."""
    DECIMAL = "d"
    """A string with exact digits, which to_json would leave a number."""
    TIMESTAMP = "t"
    """A string with T between date and time, and +00:00 where PostgreSQL prints +00."""
    JSON = "j"
    """The value itself, verbatim; raw line breaks become blanks (only json has any)."""
    NESTING = "n"
    """A string, PostgreSQL's text, which to_json would nest: composites, int2vector."""
    TEXT = "s"
    """A string, PostgreSQL's text."""
    ARRAY = "a"
    """A JSON array of the element's rule, nested as deep as the array has dimensions."""


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """One row of pg_type, with the types it is made of."""

    #: pg_type.oid.
    oid: int
    #: pg_type.typname.
    name: str
    #: The schema of the type.
    namespace: str = "pg_catalog"
    #: pg_type.typtype: b base, c composite, d domain, e enum, r range, m multirange.
    typtype: str = "b"
    #: An array's element type; None for any other type.
    element: "TypeInfo | None" = None
    #: pg_type.typdelim: the character between the elements of an array of this type.
    delimiter: str = ","
    #: A domain's base type, which may be a domain too; None for any other type.
    base: "TypeInfo | None" = None
    #: pg_type.typtypmod: the type modifier that a domain gives its base type.
    base_modifier: int = -1

    @property
    def is_built_in(self) -> bool:
        """True if the type and its casts are PostgreSQL's own.

        The owner of any other type may define its casts, to text and to json as well.
        """
        return self.namespace == "pg_catalog" and self.oid < _FIRST_NORMAL_OID


_FIRST_NORMAL_OID = 16384
"""FirstNormalObjectId: json_categorize_type searches casts to json from there on."""

_BUILT_IN = {
    "bool": Rule.BOOLEAN,
    "int2": Rule.INTEGER,
    "int4": Rule.INTEGER,
    "int8": Rule.INTEGER,
    "oid": Rule.OID,
    "float4": Rule.FLOAT,
    "float8": Rule.FLOAT,
    "numeric": Rule.DECIMAL,
    "timestamp": Rule.TIMESTAMP,
    "timestamptz": Rule.TIMESTAMP,
    "json": Rule.JSON,
    "jsonb": Rule.JSON,
    "int2vector": Rule.NESTING,
    "oidvector": Rule.NESTING,
}


def base_of(type_info: TypeInfo) -> TypeInfo:
    """The type below every domain."""
    while type_info.base is not None:
        type_info = type_info.base
    return type_info


def rule_of(type_info: TypeInfo) -> Rule:
    """The rule that values of this type follow; a domain follows its base type's."""
    base = base_of(type_info)
    if base.element is not None:
        return Rule.ARRAY
    if base.typtype == "c":
        return Rule.NESTING
    if base.namespace != "pg_catalog":
        return Rule.TEXT
    return _BUILT_IN.get(base.name, Rule.TEXT)


def element_of(array: TypeInfo) -> TypeInfo:
    """The type of an array's elements, below every domain.

    :raises ModelError: if ``array`` isn't an array.
    """
    element = base_of(array).element
    if element is None:
        raise ModelError(f"type {array.namespace}.{array.name} is not an array")
    return base_of(element)


class TypeRow(NamedTuple):
    """One row of :data:`TYPES_SQL`: a :class:`TypeInfo` whose types are still oids."""

    oid: int
    name: str
    namespace: str
    typtype: str
    element: int
    delimiter: str
    base: int
    base_modifier: int


TYPES_SQL = """
WITH RECURSIVE wanted(oid) AS (
    SELECT unnest(%s::pg_catalog.oid[])
    UNION
    SELECT part FROM wanted JOIN pg_catalog.pg_type t ON t.oid = wanted.oid,
        LATERAL unnest(ARRAY[t.typelem, t.typbasetype]) AS part
    WHERE part <> 0
)
SELECT t.oid::int8, t.typname::text, n.nspname::text, t.typtype::text,
    CASE WHEN element.oid IS NULL THEN 0 ELSE t.typelem::int8 END,
    coalesce(element.typdelim, t.typdelim)::text,
    t.typbasetype::int8, t.typtypmod
FROM wanted
JOIN pg_catalog.pg_type t ON t.oid = wanted.oid
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN pg_catalog.pg_type element ON element.oid = t.typelem AND element.typarray = t.oid
"""
"""Types by oid, and all types that they are made of. A true array is the typarray of its element,
which int2vector and oidvector are not; the element's typdelim separates its elements."""


def type_infos(rows: Iterable[TypeRow]) -> dict[int, TypeInfo]:
    """The types, by oid, that :data:`TYPES_SQL` selected."""
    by_oid = {row.oid: row for row in rows}
    made: dict[int, TypeInfo] = {}

    def make(oid: int) -> TypeInfo:
        if oid not in made:
            row = by_oid[oid]
            made[oid] = TypeInfo(
                row.oid,
                row.name,
                row.namespace,
                row.typtype,
                make(row.element) if row.element else None,
                row.delimiter,
                make(row.base) if row.base else None,
                row.base_modifier,
            )
        return made[oid]

    return {oid: make(oid) for oid in by_oid}
