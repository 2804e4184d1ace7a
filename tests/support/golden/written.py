"""Artifacts written by docs/archive-format.md alone, for the golden archives.

On purpose nothing here comes from laredo_archive.codec, which is what the golden archives
test: rows are taken apart by the standard library, messages made by protobuf's own classes.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from google.protobuf.struct_pb2 import ListValue, NullValue, Struct, Value

from laredo_archive.wire.artifact_pb2 import DiffChange, SnapshotRow

JSON_TYPES = ("json", "jsonb", "_json", "_jsonb")
INTEGER_TYPES = ("int2", "int4", "int8", "oid")
FLOAT_TYPES = {"float4": 6, "float8": 15}
EXACT_INTEGER = 2**53

Types = Mapping[str, str] | None
"""By column; None in archives that name no columns."""
Lines = Mapping[str, str]
"""Lines by key."""
_decoder = json.JSONDecoder()


def members(line: str) -> dict[str, str]:
    """A row's values, verbatim."""
    found: dict[str, str] = {}
    at = 1
    while line[at] != "}":
        name, at = _decoder.raw_decode(line, at)
        _, end = _decoder.raw_decode(line, at + 1)
        found[name] = line[at + 1 : end]
        at = end + (line[end] == ",")
    assert at == len(line) - 1, line
    return found


def key_of(line: str, key_fields: Sequence[str]) -> str:
    """One key column: its value as text; several: the array of their JSON values."""
    values = [members(line)[name] for name in key_fields]
    if len(values) > 1:
        return f"[{','.join(values)}]"
    return str(json.loads(values[0])) if values[0][0] == '"' else values[0]


def original_key_of(line: str, key_fields: Sequence[str]) -> str:
    """Key of a line in an archive of the original, where a number in a string is a number."""
    values = []
    for name in key_fields:
        text = members(line)[name]
        values.append(text[1:-1] if re.fullmatch(r'"-?\d+"', text) else text)
    if len(values) > 1:
        return f"[{','.join(values)}]"
    return str(json.loads(values[0])) if values[0][0] == '"' else values[0]


class Change:
    """One key's net change: ``old`` None on INSERT, ``new`` on DELETE."""

    def __init__(self, key: str, old: str | None, new: str | None) -> None:
        self.key, self.old, self.new = key, old, new
        self.action = "INSERT" if old is None else "DELETE" if new is None else "UPDATE"


def changes(before: Lines, after: Lines) -> list[Change]:
    """Changes from one state to another, in key order."""
    keys = sorted(before.keys() | after.keys(), key=str.encode)
    return [
        Change(key, before.get(key), after.get(key))
        for key in keys
        if before.get(key) != after.get(key)
    ]


class Jsonl:
    """jsonl; ``blanks`` as json.dumps puts them, as other writers do."""

    extension = ".jsonl"

    def __init__(self, types: Types, *, blanks: bool) -> None:
        self._colon, self._comma = (": ", ", ") if blanks else (":", ",")

    def row(self, line: str) -> bytes:
        return f"{self._row(line)}\n".encode()

    def change(self, change: Change) -> bytes:
        parts = {"action": json.dumps(change.action)}
        parts["key"] = json.dumps(change.key, ensure_ascii=False)
        if change.old is not None:
            parts["old"] = self._row(change.old)
        if change.new is not None:
            parts["new"] = self._row(change.new)
        return f"{self._object(parts)}\n".encode()

    def truncation(self) -> bytes:
        return f"{self._object({'action': json.dumps('TRUNCATE')})}\n".encode()

    def _row(self, line: str) -> str:
        return self._object(members(line))

    def _object(self, parts: Mapping[str, str]) -> str:
        inside = [
            f"{json.dumps(name, ensure_ascii=False)}{self._colon}{text}"
            for name, text in parts.items()
        ]
        return "{" + self._comma.join(inside) + "}"


class Protobuf:
    """protobuf: SnapshotRow and DiffChange, each with its length in front."""

    extension = ".pb"

    def __init__(self, types: Types, *, blanks: bool) -> None:
        self._types = types or {}

    def row(self, line: str) -> bytes:
        return _with_length(SnapshotRow(row=self._struct(line)).SerializeToString(True))

    def change(self, change: Change) -> bytes:
        message = DiffChange(action=change.action, key=change.key)
        if change.old is not None:
            message.old.CopyFrom(self._struct(change.old))
        if change.new is not None:
            message.new.CopyFrom(self._struct(change.new))
        return _with_length(message.SerializeToString(deterministic=True))

    def truncation(self) -> bytes:
        return _with_length(DiffChange(action="TRUNCATE").SerializeToString())

    def _struct(self, line: str) -> Struct:
        values = members(line).items()
        return Struct(fields={name: _value(text, self._types.get(name)) for name, text in values})


def _with_length(message: bytes) -> bytes:
    size, prefix = len(message), bytearray()
    while size > 0x7F:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*prefix, size]) + message


def _value(text: str, type_name: str | None) -> Value:
    if text == "null":
        return Value(null_value=NullValue.NULL_VALUE)
    if type_name in JSON_TYPES or text[0] == '"':
        return Value(string_value=text if type_name in JSON_TYPES else json.loads(text))
    if text[0] == "[":
        element = type_name.removeprefix("_") if type_name else None
        return Value(list_value=ListValue(values=_elements(text, element)))
    if text in ("true", "false"):
        return Value(bool_value=text == "true")
    if _double_shows(text, type_name):
        return Value(number_value=float(text))
    return Value(string_value=text)


def _elements(text: str, element: str | None) -> list[Value]:
    found: list[Value] = []
    at = 1
    while text[at] != "]":
        _, end = _decoder.raw_decode(text, at)
        found.append(_value(text[at:end], element))
        at = end + (text[end] == ",")
    return found


def _double_shows(text: str, type_name: str | None) -> bool:
    """True if a reader that knows the type prints these very digits for the double."""
    if type_name in INTEGER_TYPES:
        return abs(int(text)) <= EXACT_INTEGER
    return postgres_float(float(text), FLOAT_TYPES.get(type_name or "", 15)) == text


def postgres_float(number: float, exponent_from: int) -> str:
    """Shortest digits; an exponent below 1e-4 and from 10 to the power ``exponent_from`` up."""
    if number == 0:
        return "-0" if str(number)[0] == "-" else "0"
    decimal = Decimal(repr(number)).normalize()
    power = decimal.adjusted()
    if -4 <= power < exponent_from:
        return f"{decimal:f}"
    digits = "".join(map(str, decimal.as_tuple().digits))
    mantissa = digits[0] + ("." + digits[1:] if digits[1:] else "")
    return f"{'-' if number < 0 else ''}{mantissa}e{'-' if power < 0 else '+'}{abs(power):02d}"


FORMATS: Mapping[str, Callable[..., Any]] = {"jsonl": Jsonl, "protobuf": Protobuf}
