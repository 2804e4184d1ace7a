"""Convert a value from pgoutput's text to JSON, by its type's rule.

The text is what a type's output function prints under the session settings of
``select.SESSION``; pgoutput sends it so
(https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html).
"""

import re
from collections.abc import Callable

import orjson

from laredo_model.errors import BadLine
from laredo_model.rule import Rule, TypeInfo, element_of, rule_of

Encode = Callable[[bytes], bytes]

_LINE_BREAKS_TO_BLANKS = bytes.maketrans(b"\n\r", b"  ")
_BOUNDS = re.compile(rb"\[[-0-9:\[\]]+\]=")
_QUOTED_ELEMENT = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


def text(value: bytes) -> bytes:
    """A JSON string; only what JSON must escape is escaped, as in to_json."""
    return orjson.dumps(value.decode())


def boolean(value: bytes) -> bytes:
    """true or false."""
    return b"true" if value == b"t" else b"false"


def number(value: bytes) -> bytes:
    """The digits as they are."""
    return value


def floating(value: bytes) -> bytes:
    """The digits as PostgreSQL prints them; NaN and the infinities are JSON strings."""
    return b'"' + value + b'"' if value[-1:] in b"Ny" else value


def timestamp(value: bytes) -> bytes:
    """ISO 8601, as to_json prints it; infinity stays as it is."""
    value = value.replace(b" ", b"T", 1)
    for end in (b"", b" BC"):
        if value.endswith(b"+00" + end):
            return b'"' + value.removesuffix(end) + b":00" + end + b'"'
    return b'"' + value + b'"'


def json(value: bytes) -> bytes:
    """The value verbatim, on one line."""
    return value.translate(_LINE_BREAKS_TO_BLANKS)


_SCALARS: dict[Rule, Encode] = {
    Rule.BOOLEAN: boolean,
    Rule.INTEGER: number,
    Rule.OID: number,
    Rule.FLOAT: floating,
    Rule.DECIMAL: text,
    Rule.TIMESTAMP: timestamp,
    Rule.JSON: json,
    Rule.NESTING: text,
    Rule.TEXT: text,
}


def encoder(type_info: TypeInfo) -> Encode:
    """The function that converts a value of this type (never NULL) from text to JSON."""
    rule = rule_of(type_info)
    if rule is not Rule.ARRAY:
        return _SCALARS[rule]
    element = element_of(type_info)
    delimiter = element.delimiter.encode()
    encode_element = encoder(element)

    def array(value: bytes) -> bytes:
        return array_of(value, encode_element, delimiter)

    return array


def array_of(value: bytes, encode_element: Encode, delimiter: bytes) -> bytes:
    """Convert an array's text (``{1,NULL,"a b"}``) to a JSON array; bounds are dropped.

    https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO

    :raises BadLine: if it isn't an array's text.
    """
    bounds = _BOUNDS.match(value)
    at = bounds.end() if bounds else 0
    bare = re.compile(rb"[^" + re.escape(delimiter) + rb"{}\"]+")
    pieces: list[bytes] = []
    while at < len(value):
        byte = value[at : at + 1]
        if byte == b"{":
            pieces.append(b"[")
        elif byte == b"}":
            pieces.append(b"]")
        elif byte == delimiter:
            pieces.append(b",")
        elif quoted := _QUOTED_ELEMENT.match(value, at):
            pieces.append(encode_element(_ESCAPED.sub(rb"\1", quoted[1])))
            at = quoted.end()
            continue
        elif plain := bare.match(value, at):
            pieces.append(b"null" if plain[0] == b"NULL" else encode_element(plain[0]))
            at = plain.end()
            continue
        else:
            raise BadLine(f"not an array's text, at byte {at}: {value[:80]!r}")
        at += 1
    return b"".join(pieces)
