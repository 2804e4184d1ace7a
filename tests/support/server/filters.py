"""Filters as a client puts them on the wire."""

from typing import Any

from google.protobuf import struct_pb2

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
