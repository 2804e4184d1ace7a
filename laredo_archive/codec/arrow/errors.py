"""Errors of converting lines to typed columns.

ArrowError
├── TypingRefused        an option that no column can have
├── ValueLacking         a value of PostgreSQL's that the column can't have as it is read
│   ├── SpecialValue     infinity, NaN, BC: the column's Arrow type lacks it
│   └── ArrayTooDeep     an array with more dimensions than its column was given
└── ValueUnfit           a value that isn't of its column's type at all: damage
"""

from typing import Self

from laredo_archive.errors import ArchiveError


class ArrowError(ArchiveError):
    """The root of this package's errors."""


class TypingRefused(ArrowError):
    """An option about types that can't be had."""


class ValueLacking(ArrowError):
    """A value of PostgreSQL's that the column can't have as it is read."""

    has_location = False
    """True if the message begins with the value's location."""

    def with_location(self, where: str) -> Self:
        """Put ``where`` before the error's message, unless it has a location already."""
        if not self.has_location:
            self.args = (f"{where}: {self}",)
            self.has_location = True
        return self


class SpecialValue(ValueLacking):
    """A value that PostgreSQL's type has and the column's Arrow type hasn't."""

    def __init__(self, column: str, value: str, arrow_type: object) -> None:
        super().__init__(
            f"column {column}: {value} isn't among the values of {arrow_type}. Read such columns"
            ' as text (special_values = "string"), or such values as null (special_values = "null")'
        )
        self.column = column
        self.value = value


class ArrayTooDeep(ValueLacking):
    """PostgreSQL lets every value of an array column have dimensions of its own; Arrow doesn't."""

    def __init__(self, column: str, value: str, dimensions: int) -> None:
        super().__init__(
            f"column {column}: {value} hasn't the {dimensions} dimension(s) of its type."
            f' Set their number (array_dimensions = "{column}=N"), or read it as JSON text'
            f' (array_dimensions = "{column}=0")'
        )
        self.column = column
        self.value = value


class ValueUnfit(ArrowError):
    """A value that isn't of its column's type: the file, or the manifest's columns, are wrong."""

    def __init__(self, column: str, value: str, type_name: str) -> None:
        super().__init__(
            f"column {column}: {value} isn't of type {type_name}, which the manifest declares"
        )
        self.column = column
        self.value = value
