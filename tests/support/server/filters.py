"""Filters as a client puts them on the wire."""

from collections.abc import Sequence
from typing import Any

from google.protobuf import struct_pb2

from laredo_fanout.serving import filters
from laredo_fanout.serving.filters import Conditions
from laredo_fanout.wire import replication_pb2 as wire


def value(plain: Any) -> struct_pb2.Value:
    made = struct_pb2.Value()
    if plain is None:
        made.null_value = struct_pb2.NULL_VALUE
    elif isinstance(plain, bool):
        made.bool_value = plain
    elif isinstance(plain, str):
        made.string_value = plain
    elif isinstance(plain, list):
        made.list_value.SetInParent()
    else:
        made.number_value = plain
    return made


def equals(field: str, plain: Any) -> wire.FieldPredicate:
    return wire.FieldPredicate(field=field, equals=value(plain))


def conditions(predicates: Sequence[wire.FieldPredicate]) -> Conditions:
    """As the server parses them, in one go."""
    work = filters.read(predicates)
    while True:
        try:
            next(work)
        except StopIteration as done:
            parsed: Conditions = done.value
            return parsed
