"""Parses and checks the request of a Sync call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from laredo_fanout.serving.errors import BadRequest
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import position as position_
from laredo_model.errors import BadHistory, BadPosition
from laredo_model.position import History, Position

BATCH = "batch/json.v1"
BOUNDARY = "boundary.v1"
RELAY = "relay.v1"
TABLES = "tables.v1"
MAX_CLIENT_ID = 256
MAX_NAME = 256
MAX_SNAPSHOT_ID = 2 * MAX_NAME + 64
MAX_REQUEST_BYTES = 128 << 10
"""Decoding costs up to 40 ns and 20 bytes of memory a byte, before anything can be counted."""
MAX_PREDICATES = 64
MAX_VALUES = 10_000

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class CheckedSyncRequest:
    """A checked SyncRequest."""

    table: str
    client_id: str
    #: None where the client sent none.
    position: Position | None
    #: Only sent by clients that know the extension.
    history: History | None
    #: None where the client sent none.
    sequence: int | None
    snapshot_id: str
    filtered: bool
    batch: bool
    want_old: bool
    #: Whether the client wants the table's verified position.
    boundaries: bool
    #: Whether it is a relay, which wants the histories that this one goes on from.
    relay: bool = False


def decode(kind: type[M], data: bytes) -> M:
    """The request in these bytes.

    :raises BadRequest: it is longer than MAX_REQUEST_BYTES, or can't be decoded.
    """
    name = kind.DESCRIPTOR.name
    if len(data) > MAX_REQUEST_BYTES:
        raise BadRequest(
            f"the {name} is {len(data)} bytes long, more than {MAX_REQUEST_BYTES}: "
            "give fewer or shorter filters"
        )
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise BadRequest(f"not a {name}: {error}") from error


def parse_sync(data: bytes) -> tuple[CheckedSyncRequest, Sequence[wire.FieldPredicate]]:
    """The request in these bytes, and its filters as they came, of bounded number and size.

    :raises BadRequest: it can't be decoded, or a field makes no sense; the message names it.
    """
    asked = decode(wire.SyncRequest, data)
    _check_filters(asked.filters)
    if len(asked.client_id) > MAX_CLIENT_ID:
        raise BadRequest(f"client_id is longer than {MAX_CLIENT_ID} characters")
    check_snapshot_id(asked.last_snapshot_id)
    if asked.last_known_sequence < 0:
        raise BadRequest(f"last_known_sequence is negative: {asked.last_known_sequence}")
    sequence = asked.last_known_sequence or None
    batch = BATCH in asked.capabilities
    parsed = CheckedSyncRequest(
        table=table_name(asked.schema, asked.table),
        client_id=asked.client_id,
        position=_position(asked.last_known_source_position, may_be_wrong=sequence is not None),
        history=_history(asked.history) if batch else None,
        sequence=sequence,
        snapshot_id=asked.last_snapshot_id,
        filtered=len(asked.filters) > 0,
        batch=batch,
        want_old=batch and asked.want_old,
        boundaries=batch and BOUNDARY in asked.capabilities,
        relay=batch and RELAY in asked.capabilities,
    )
    return parsed, asked.filters


def _check_filters(filters: Sequence[wire.FieldPredicate]) -> None:
    """Refuse more than is reasonable before anything is made of it."""
    if len(filters) > MAX_PREDICATES:
        raise BadRequest(f"filters: {len(filters)} predicates, more than {MAX_PREDICATES}")
    values = sum(len(getattr(each, "in").values) for each in filters if each.HasField("in"))
    if values > MAX_VALUES:
        raise BadRequest(f"filters: {values} values to compare with, more than {MAX_VALUES}")


def check_snapshot_id(snapshot_id: str) -> None:
    """Check that a snapshot's id isn't too long.

    :raises BadRequest: it is too long.
    """
    if len(snapshot_id) > MAX_SNAPSHOT_ID:
        raise BadRequest(f"a snapshot id is no longer than {MAX_SNAPSHOT_ID} characters")


def table_name(schema: str, table: str) -> str:
    """The table's name, `schema.table`.

    :raises BadRequest: one of them is empty.
    """
    if not schema or not table:
        missing = "schema" if not schema else "table"
        raise BadRequest(f"{missing} is empty: name the table by schema and table")
    if max(len(schema), len(table)) > MAX_NAME:
        raise BadRequest(f"schema or table is longer than {MAX_NAME} characters")
    return f"{schema}.{table}"


def _position(text: str, *, may_be_wrong: bool) -> Position | None:
    if not text:
        return None
    try:
        return position_.parse(text)
    except BadPosition as error:
        if may_be_wrong:
            return None
        raise BadRequest(f"last_known_source_position: {error}") from error


def _history(text: str) -> History | None:
    if not text:
        return None
    try:
        return position_.parse_history(text)
    except BadHistory as error:
        raise BadRequest(f"history: {error}") from error
