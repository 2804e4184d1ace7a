"""Parts of wire messages, each checked against the contract before anything is made of it."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from google.protobuf import timestamp_pb2

from laredo_fanout.client.events import HistoryOrigin
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import position as position_
from laredo_model.column import Column
from laredo_model.errors import BadMessage, BadTime
from laredo_model.line import Action
from laredo_model.position import Ancestor, History, Position

_EVERY_ACTION = bytes(Action)
_WITH_LINE = bytes((Action.INSERT, Action.UPDATE))
_HAS_LINE = bytes(action not in (Action.DELETE, Action.TRUNCATE) for action in range(256))
CHECKSUM = re.compile(r"[0-9a-f]{32}\Z")
_MOST = 1 << 62
"""Of sequences and rows: what is added to them stays within 64 bits."""
LATEST_US = 253_402_300_799_999_999
"""9999-12-31, where datetime ends; no transaction was committed before 1970."""


def check_lengths(batch: wire.ChangeBatch, *, want_old: bool) -> None:
    """:raises BadMessage: if the columns of a batch don't fit each other."""
    many = len(batch.actions)
    if (
        len(batch.keys) != many
        or len(batch.lines) != many
        or (want_old and len(batch.old_lines) != many)
        or len(batch.sequences) not in {0, many}
        or not len(batch.counts) == len(batch.positions) == len(batch.times_us)
        or sum(batch.counts) != many
    ):
        raise BadMessage(
            f"the columns of the change batch at sequence {batch.first_sequence} differ in length"
        )


def check_rows(actions: bytes, keys: list[bytes], lines: list[bytes]) -> None:
    """An empty key is a row's too: that of an empty text.

    :raises BadMessage: if an action is unknown, lacks its line, or has a key or line too many.
    """
    if actions.translate(None, _EVERY_ACTION):
        raise BadMessage("a change has an unknown action")
    if not actions.strip(_WITH_LINE) and all(lines):
        return
    if any(key for action, key in zip(actions, keys, strict=True) if action == Action.TRUNCATE):
        raise BadMessage("a TRUNCATE has a key")
    if bytes(map(bool, lines)) != actions.translate(_HAS_LINE):
        raise BadMessage("a change has no line, or a DELETE or TRUNCATE has one")


def check_sequences(first: int, sequences: list[int]) -> None:
    """:raises BadMessage: if they don't ascend, or can't be counted on from."""
    for number in (first, *sequences[:1], *sequences[-1:]):
        count(number, "a change's sequence")
    if sequences != sorted(set(sequences)):
        raise BadMessage(f"the sequences of the change batch at {first} don't ascend")


def columns(sent: Iterable[wire.ColumnDefinition], *, described: bool) -> tuple[Column, ...]:
    """A table's columns; ``described``: they are of the base form, which has less of them, if not.

    :raises BadMessage: if they can't be one table's.
    """
    found = _columns(sent)
    if described:
        names = {column.name for column in found}
        ordinals = sorted(each.key_ordinal for each in found if each.key_ordinal is not None)
        if not found or "" in names or len(names) != len(found):
            raise BadMessage("a table's columns have no names, or one name twice")
        if ordinals != list(range(1, len(ordinals) + 1)):
            raise BadMessage(f"a key's columns have the numbers {ordinals}")
    return found


def count(number: int, name: str) -> int:
    """The number.

    :raises BadMessage: if it is negative, or leaves no room to count on.
    """
    if not 0 <= number < _MOST:
        raise BadMessage(f"{name} is {number}")
    return number


def _columns(definitions: Iterable[wire.ColumnDefinition]) -> tuple[Column, ...]:
    return tuple(
        Column(
            column.column_name,
            column.data_type,
            column.type_modifier,
            not column.not_null,
            column.ordinal_position,
            column.primary_key_ordinal or 1 if column.is_primary_key else None,
        )
        for column in sorted(definitions, key=lambda column: column.ordinal_position)
    )


def origin(sent: wire.SyncHandshake) -> HistoryOrigin:
    """Origin of a history, for a relay."""
    return HistoryOrigin(
        tuple(
            Ancestor(position_.parse_history(each.history), position_.parse(each.until))
            for each in sent.ancestors
        ),
        sent.history_reason,
        position(sent.history_since) or position_.ZERO,
    )


def position(text: str) -> Position | None:
    """A position; None where none was sent."""
    return position_.parse(text) if text else None


def history(text: str) -> History | None:
    """A history; None where none was sent."""
    return position_.parse_history(text) if text else None


def time(stamp: timestamp_pb2.Timestamp) -> datetime:
    """A time.

    :raises BadTime: if it is none.
    """
    try:
        return stamp.ToDatetime(UTC)
    except (ValueError, OverflowError) as wrong:
        raise BadTime(str(wrong)) from wrong


def microseconds(stamp: timestamp_pb2.Timestamp) -> int:
    """A commit time in microseconds since 1970.

    :raises BadTime: if it is none.
    """
    microseconds = stamp.seconds * 1_000_000 + stamp.nanos // 1000
    if not 0 <= microseconds <= LATEST_US:
        raise BadTime(f"{stamp.seconds} s and {stamp.nanos} ns after 1970 is no time")
    return microseconds
