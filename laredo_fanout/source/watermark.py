"""Messages that we write into the WAL, to meet them again in the stream.

Two kinds: a *look* says that the catalog, as one look at it saw it, holds from
here on (and lets an idle slot advance); a *barrier* says that every row read by
a table's copy was committed before. Messages reach every slot of the database,
and come again after a crash, so each names its slot and a random token.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from laredo_fanout.source.session import Connection

PREFIX = "laredo"


class Look(NamedTuple):
    """The look with this number, of the run with this token, has been passed."""

    number: int


class Barrier(NamedTuple):
    """The barrier with this whole payload."""

    payload: str


def new_token() -> str:
    """Random, never used before."""
    return secrets.token_hex(8)


def look_payload(slot: str, run: str, number: int) -> str:
    """The content of a look's message."""
    return f"{slot}:{run}:look:{number}"


def barrier_payload(slot: str, table_id: int, generation: int) -> str:
    """The content of a new barrier's message; store it durably before it is sent."""
    return f"{slot}:{new_token()}:barrier:{table_id}:{generation}"


def parse(content: bytes, slot: str, run: str) -> Look | Barrier | None:
    """Whose message it is; None: not this slot's, or a look of an earlier run."""
    text = content.decode(errors="replace")
    if text.startswith(f"{slot}:{run}:look:"):
        return Look(int(text.rpartition(":")[2]))
    if text.startswith(f"{slot}:") and ":barrier:" in text:
        return Barrier(text)
    return None


def emit(connection: Connection, payload: str) -> None:
    """Write the message, in a transaction of its own (synchronous_commit is local)."""
    connection.execute("SELECT pg_logical_emit_message(true, %s, %s)", (PREFIX, payload))
