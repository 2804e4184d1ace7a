"""The column types whose values a Struct holds only as text, and the digits of numbers."""

import re

from laredo_archive.codec import floats

JSONS = frozenset({"json", "jsonb", "_json", "_jsonb"})
INTEGERS = frozenset({"int2", "int4", "int8", "oid"})
FLOAT_DIGITS = {"float4": floats.FLOAT4_DIGITS, "float8": floats.FLOAT8_DIGITS}
UNKNOWN = ""
"""The type of a column in an archive that names no columns."""
NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?\Z")
"""A JSON number: https://www.rfc-editor.org/rfc/rfc8259#section-6"""

_EXACT_INTEGER = 1 << 53


def element_type(type_name: str) -> str:
    """The type of an array's elements, at any depth; PostgreSQL calls the array ``_int4``."""
    return type_name.removeprefix("_")


def number_text(number: float, type_name: str) -> bytes:
    """The digits that a column of this type shows for ``number``."""
    digits = FLOAT_DIGITS.get(type_name)
    if digits is not None:
        return floats.text(number, digits)
    if number.is_integer() and abs(number) <= _EXACT_INTEGER:
        return b"%d" % int(number)
    return floats.text(number)
