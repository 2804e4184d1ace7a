"""What a client asked for, checked."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from laredo_fanout.serving.errors import BadRequest
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import history as history_
from laredo_model import position as position_
from laredo_model.errors import BadHistory, BadPosition
from laredo_model.history import History
from laredo_model.position import Position

BATCH = "batch/json.v1"
BOUNDARY = "boundary.v1"
OUT_OF_ORDER = "out-of-order.v1"
MAX_CLIENT_ID = 256


@dataclass(frozen=True, slots=True)
class SyncAsked:
    """A SyncRequest in our own terms.

    `position` and `sequence` are None where the client gave none; `history` is only given by
    clients that know the extension. `boundaries`: it wants to know up to where the source's
    catalog was looked at. `in_order`: it can't tell changes that are out of commit order, so it
    is sent none.
    """

    table: str
    client_id: str
    position: Position | None
    history: History | None
    sequence: int | None
    snapshot_id: str
    predicates: tuple[wire.FieldPredicate, ...]
    batch: bool
    want_old: bool
    boundaries: bool
    in_order: bool


def parse_sync(data: bytes) -> SyncAsked:
    """The request in these bytes.

    :raises BadRequest: it can't be decoded, or a field makes no sense; the message names it.
    """
    try:
        asked = wire.SyncRequest.FromString(data)
    except DecodeError as error:
        raise BadRequest(f"not a SyncRequest: {error}") from error
    if len(asked.client_id) > MAX_CLIENT_ID:
        raise BadRequest(f"client_id is longer than {MAX_CLIENT_ID} characters")
    if asked.last_known_sequence < 0:
        raise BadRequest(f"last_known_sequence is negative: {asked.last_known_sequence}")
    sequence = asked.last_known_sequence or None
    batch = BATCH in asked.capabilities
    return SyncAsked(
        table=table_name(asked.schema, asked.table),
        client_id=asked.client_id,
        position=_position(asked.last_known_source_position, may_be_wrong=sequence is not None),
        history=_history(asked.history) if batch else None,
        sequence=sequence,
        snapshot_id=asked.last_snapshot_id,
        predicates=tuple(asked.filters),
        batch=batch,
        want_old=batch and asked.want_old,
        boundaries=batch and BOUNDARY in asked.capabilities,
        in_order=batch and OUT_OF_ORDER not in asked.capabilities,
    )


def table_name(schema: str, table: str) -> str:
    """`schema.table`, as tables are called everywhere.

    :raises BadRequest: one of them is empty.
    """
    if not schema or not table:
        missing = "schema" if not schema else "table"
        raise BadRequest(f"{missing} is empty: name the table by schema and table")
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
        return history_.parse(text)
    except BadHistory as error:
        raise BadRequest(f"history: {error}") from error
