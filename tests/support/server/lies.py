"""Lies of an upstream: an honest stream with one thing changed, for each thing there is.

Each field of each message is missing, empty, out of its range, or twice there; each message is
missing, twice there, later, or no protobuf.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from laredo_fanout.wire import replication_pb2 as wire

_INTEGERS = {
    FieldDescriptor.TYPE_INT32: (0, -1, -(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_INT64: (0, -1, -(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_UINT32: (0, 7, (1 << 32) - 1),
    FieldDescriptor.TYPE_UINT64: (0, 1, (1 << 64) - 1),
    FieldDescriptor.TYPE_ENUM: (0, 1, 2, 3, 4, 99),
    FieldDescriptor.TYPE_BOOL: (False, True),
}
_TEXTS = ("", "0/0", "FFFFFFFF/FFFFFFFF", "1:2:3", "\u0663/\u0661", "x\0y", "x" * 70_000)
_BYTES = (
    b"",
    b"\0",
    b"\x01{}",
    b"\x02",
    b"\xff" * 9,
    b"[]",
    b"1",
    b"null",
    b"{",
    b'{"id":}',
    b"{1:2}",
    b'{"id":1,"name":"\xff"}',
    b'{"\xff":1}',
    b"[" * 100_000,
    b'{"id":1' + b"0" * 5000 + b"}",
)


class Lie(NamedTuple):
    """A false message, and the stream that has it."""

    name: str
    script: list[wire.SyncResponse | bytes]


def lies(honest: Sequence[wire.SyncResponse]) -> Iterator[Lie]:
    """Everything that may be changed in this stream, one thing at a time."""
    for number, message in enumerate(honest):
        kind = f"{number} {message.WhichOneof('message')}"
        before, after = list(honest[:number]), list(honest[number + 1 :])
        yield Lie(f"{kind} missing", [*before, *after])
        yield Lie(f"{kind} twice", [*before, message, message, *after])
        yield Lie(f"{kind} empty", [*before, _emptied(message), *after])
        yield Lie(f"{kind} bytes", [*before, b"\xff\xff\xff", *after])
        for later in range(1, len(after) + 1):
            moved = [*after[:later], message, *after[later:]]
            yield Lie(f"{kind} later by {later}", [*before, *moved])
        for what, changed in altered(message):
            yield Lie(f"{kind} {what}", [*before, changed, *after])


def altered(message: Any) -> Iterator[tuple[str, Any]]:
    """Copies of a message, each with one field that is another; with the field's name."""
    for field, _ in message.ListFields():
        for what, changed in _altered_field(message, field):
            yield f"{field.name}{what}", changed
    for field in message.DESCRIPTOR.fields:
        if not field.is_repeated and field.type in _INTEGERS and not field.containing_oneof:
            for value in _INTEGERS[field.type]:
                yield f"{field.name}={value}", _with(message, field.name, value)


def _altered_field(message: Any, field: FieldDescriptor) -> Iterator[tuple[str, Any]]:
    name, value = field.name, getattr(message, field.name)
    if field.type == FieldDescriptor.TYPE_MESSAGE and not field.is_repeated:
        for what, changed in altered(value):
            copy = _copy(message)
            getattr(copy, name).CopyFrom(changed)
            yield f".{what}", copy
        yield " cleared", _cleared(message, name)
        return
    if not field.is_repeated:
        for other in _values(field, value):
            yield f"={other!r:.30}", _with(message, name, other)
        return
    yield " cleared", _cleared(message, name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return
    for what, items in (
        ("[:-1]", value[:-1]),
        (" twice", [*value, *value]),
        ("+1", [*value, value[-1]]),
        (" reversed", value[::-1]),
    ):
        yield what, _with_items(message, name, items)
    changed_items = (
        altered(value[-1])
        if isinstance(value[-1], Message)
        else ((f"={other!r:.30}", other) for other in _values(field, value[-1]))
    )
    for what, other in changed_items:
        yield f"[-1].{what}", _with_items(message, name, [*value[:-1], other])


def _values(field: FieldDescriptor, value: Any) -> Sequence[Any]:
    if isinstance(value, str):
        return _TEXTS
    if isinstance(value, bytes):
        return (*_BYTES, value + value)
    return _INTEGERS.get(field.type, ())


def _copy(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _with(message: Any, name: str, value: Any) -> Any:
    copy = _copy(message)
    setattr(copy, name, value)
    return copy


def _cleared(message: Any, name: str) -> Any:
    copy = _copy(message)
    copy.ClearField(name)
    return copy


def _with_items(message: Any, name: str, items: Sequence[Any]) -> Any:
    copy = _cleared(message, name)
    getattr(copy, name).extend(items)
    return copy


def _emptied(message: wire.SyncResponse) -> wire.SyncResponse:
    copy = wire.SyncResponse()
    getattr(copy, message.WhichOneof("message")).SetInParent()
    return copy
