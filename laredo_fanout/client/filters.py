"""Filters: conditions on rows that the server applies before it sends.

The conditions of a client are ANDed; NULL never matches; a number written in
digits equals the same number as a string. A row that an update moves into or
out of the filter arrives as INSERT or DELETE.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from google.protobuf import struct_pb2

from laredo_fanout.client.errors import BadField
from laredo_fanout.wire import replication_pb2 as wire

Scalar = str | int | float | bool

_EXACT_IN_DOUBLE = 2**53


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition on one column; make it with :func:`equals`, :func:`prefix` or :func:`is_in`."""

    field: str
    kind: str
    values: tuple[Scalar, ...]

    def to_wire(self) -> wire.FieldPredicate:
        """The condition as SyncRequest carries it."""
        if self.kind == "prefix":
            return wire.FieldPredicate(field=self.field, prefix=str(self.values[0]))
        values = [_to_value(value) for value in self.values]
        if self.kind == "equals":
            return wire.FieldPredicate(field=self.field, equals=values[0])
        # "in" is a keyword, so the field has no attribute of that name.
        predicate = wire.FieldPredicate(field=self.field)
        getattr(predicate, "in").values.extend(values)
        getattr(predicate, "in").SetInParent()
        return predicate

    def to_json(self) -> list[object]:
        """The condition as the local snapshot keeps it, to notice other filters than last time."""
        return [self.field, self.kind, [_as_text(value) for value in self.values]]


def equals(field: str, value: Scalar) -> Filter:
    """Rows whose ``field`` is ``value``."""
    return Filter(_name(field), "equals", (_scalar(field, value),))


def prefix(field: str, value: str) -> Filter:
    """Rows whose ``field``, a string, starts with ``value``."""
    if not isinstance(value, str):
        raise BadField(f"the prefix for column {field!r} must be a string, not {value!r}")
    return Filter(_name(field), "prefix", (value,))


def is_in(field: str, values: Iterable[Scalar]) -> Filter:
    """Rows whose ``field`` is one of ``values``; an empty list matches nothing."""
    if isinstance(values, str):
        raise BadField(f"is_in({field!r}, ...) wants a list of values, not the string {values!r}")
    return Filter(_name(field), "in", tuple(_scalar(field, value) for value in values))


def _name(field: str) -> str:
    if not isinstance(field, str) or not field:
        raise BadField(f"a filter needs a column's name, not {field!r}")
    return field


def _scalar(field: str, value: Scalar) -> Scalar:
    if not isinstance(value, str | int | float | bool):
        raise BadField(
            f"a filter on column {field!r} compares with a string, number or boolean, not {value!r}"
        )
    return value


def _to_value(value: Scalar) -> struct_pb2.Value:
    if isinstance(value, bool):
        return struct_pb2.Value(bool_value=value)
    if isinstance(value, str):
        return struct_pb2.Value(string_value=value)
    if isinstance(value, int) and abs(value) > _EXACT_IN_DOUBLE:
        return struct_pb2.Value(string_value=str(value))
    return struct_pb2.Value(number_value=value)


def _as_text(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
