"""Arrow types of PostgreSQL columns: the narrowest that keep every value exact.

| PostgreSQL | Arrow |
|---|---|
| bool | bool |
| int2, int4, int8, oid | int16, int32, int64, int64 |
| float4, float8 | float, double |
| numeric(p,s), p up to 38, s from 0 to p | decimal128(p, s) |
| numeric without precision | string, or the decimal that ``numeric_as`` names |
| other numeric | string |
| date | date32 |
| timestamp, timestamptz | timestamp[us], timestamp[us, UTC] |
| bytea | binary |
| arrays | lists of these, as deep as ``array_dimensions`` says; 1 is the default |
| all others (json as its text) | string |
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

import pyarrow as pa

from laredo_archive.errors import ArchiveError
from laredo_model.column import Column


class ArrowError(ArchiveError):
    """The root of errors of converting lines to typed columns."""


class TypeChoiceRefused(ArrowError):
    """An option about types that can't be satisfied."""


class UnrepresentableValue(ArrowError):
    """A value of PostgreSQL that the column's Arrow type, or a reader in Python, can't hold."""

    has_location = False
    """True if the message begins with the value's location."""

    def with_location(self, where: str) -> Self:
        """Put ``where`` before the error's message, unless it has a location already."""
        if not self.has_location:
            self.args = (f"{where}: {self}",)
            self.has_location = True
        return self


class SpecialValue(UnrepresentableValue):
    """A value such as infinity, NaN or a date BC, which Arrow's type or Python's lacks."""

    def __init__(self, column: str, value: str, arrow_type: object) -> None:
        super().__init__(
            f"column {column}: {value} can't be a {arrow_type}. Read such columns as text"
            ' (special_values = "string"), or such values as null (special_values = "null")'
        )
        self.column = column
        self.value = value


class ArrayTooDeep(UnrepresentableValue):
    """An array with other dimensions than its column's; PostgreSQL allows that, Arrow doesn't."""

    def __init__(self, column: str, value: str, dimensions: int) -> None:
        super().__init__(
            f"column {column}: {value} doesn't have the {dimensions} dimension(s) that are read."
            f' Set their number (array_dimensions = "{column}=N"), or read the column as JSON text'
            f' (array_dimensions = "{column}=0")'
        )
        self.column = column
        self.value = value


class MistypedValue(ArrowError):
    """A value that isn't of its column's type: the file, or the manifest's columns, are wrong."""

    def __init__(self, column: str, value: str, type_name: str) -> None:
        super().__init__(
            f"column {column}: {value} isn't of type {type_name}, which the manifest declares"
        )
        self.column = column
        self.value = value


MAX_PRECISION = 38
"""Digits of a decimal128, and of a Spark decimal."""

_PLAIN: Mapping[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "bytea": pa.binary(),
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)\Z")
_MODIFIER_OFFSET = 4
"""VARHDRSZ, which is added to every type modifier of numeric."""


class Special(StrEnum):
    """Treatment of values that an Arrow type lacks: infinity, NaN in a decimal, BC, year 10000.

    ``STRING`` reads every column whose type has such values as text, exactly.
    """

    ERROR = "error"
    NULL = "null"
    STRING = "string"


@dataclass(frozen=True)
class TypeChoice:
    """Choice of Arrow types, where PostgreSQL's types leave one.

    ``numeric_as``: "string" or "decimal(p,s)", for numeric columns without precision.
    ``array_dimensions``: by column; 0 reads the array as JSON text.
    """

    numeric_as: str = "string"
    special: Special = Special.ERROR
    array_dimensions: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, numeric_as: str, special_values: str, array_dimensions: Mapping[str, int] | None
    ) -> Self:
        """The choice that a Python program's options make.

        :raises TypeChoiceRefused: if there is no such choice.
        """
        if special_values not in list(Special):
            known = ", ".join(Special)
            raise TypeChoiceRefused(f'special_values = "{special_values}": write one of {known}')
        return cls(numeric_as, Special(special_values), array_dimensions or {})

    def __post_init__(self) -> None:
        """:raises TypeChoiceRefused: if there is no such decimal."""
        self.unbounded_numeric()

    def unbounded_numeric(self) -> pa.DataType:
        """The type of a numeric column without precision."""
        if self.numeric_as == "string":
            return pa.string()
        found = _DECIMAL.match(self.numeric_as)
        precision, scale = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 1 <= precision <= MAX_PRECISION or scale > precision:
            raise TypeChoiceRefused(
                f'numeric_as = "{self.numeric_as}": write "string" or "decimal(p,s)" with p from 1'
                f" to {MAX_PRECISION} and s from 0 to p"
            )
        return pa.decimal128(precision, scale)


def schema(columns: Sequence[Column], typing: TypeChoice) -> pa.Schema:
    """The Arrow schema of a table's rows, in the order of ``columns``.

    :raises TypeChoiceRefused: if ``array_dimensions`` names a column that isn't an array.
    """
    arrays = {column.name for column in columns if is_array(column)}
    for name in typing.array_dimensions:
        if name not in arrays:
            known = ", ".join(sorted(arrays)) or "none"
            raise TypeChoiceRefused(
                f"array_dimensions: {name} is no array column (there are: {known})"
            )
    return pa.schema(
        [pa.field(column.name, arrow_type(column, typing), column.nullable) for column in columns]
    )


def is_array(column: Column) -> bool:
    """True if the column's values are arrays."""
    return column.type.startswith("_")


def dimensions(column: Column, typing: TypeChoice) -> int:
    """Depth of the column's lists; 0: none."""
    return typing.array_dimensions.get(column.name, 1) if is_array(column) else 0


def arrow_type(column: Column, typing: TypeChoice) -> pa.DataType:
    """The type of one column."""
    deep = dimensions(column, typing)
    if is_array(column) and deep == 0:
        return pa.string()
    found = element_type(column, typing)
    for _ in range(deep):
        found = pa.list_(found)
    return found


def element_type(column: Column, typing: TypeChoice) -> pa.DataType:
    """The type of one value; of an array, of its elements."""
    name = column.type.removeprefix("_")
    found = _numeric(column.type_modifier, typing) if name == "numeric" else _PLAIN.get(name)
    if found is None or (typing.special is Special.STRING and has_specials(found)):
        return pa.string()
    return found


def has_specials(found: pa.DataType) -> bool:
    """True if PostgreSQL's type has values that ``found`` lacks."""
    return bool(pa.types.is_temporal(found) or pa.types.is_decimal(found))


def _numeric(modifier: int, typing: TypeChoice) -> pa.DataType:
    """numeric(p,s) by its type modifier: ((p << 16) | (s & 0x7ff)) + 4, s with 11 bits and a sign.

    https://www.postgresql.org/docs/current/datatype-numeric.html; the layout is numeric.c's.
    """
    if modifier < _MODIFIER_OFFSET:
        return typing.unbounded_numeric()
    packed = modifier - _MODIFIER_OFFSET
    precision, scale = packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 0x400) - 0x400
    if precision > MAX_PRECISION or not 0 <= scale <= precision:
        return pa.string()
    return pa.decimal128(precision, scale)
