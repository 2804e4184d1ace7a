"""Messages that the server writes into the WAL and recognizes in its stream.

Two kinds: a catalog check's message marks the position from which its catalog
snapshot holds (and lets an idle slot advance); a *barrier* marks a position after
every commit that a table's copy could read. Messages reach every slot of the
database, come again after a crash, and are open to every role
(pg_logical_emit_message is granted to PUBLIC). So each has a random number that is
shown nowhere before the message is in the WAL, and counts once: a message that
isn't awaited is ignored.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.postgres.pgoutput import Emitted

_log = structlog.get_logger()

PREFIX = "laredo"

_OF_A_SERVER = re.compile(rb"([a-z0-9_]{1,63}):[0-9a-f]{32}:(look|barrier|made:[0-9]+)")
_MOST_BYTES = 200
"""The longest message that is compared: more than any of ours has."""


def new_token() -> str:
    """A random name that may be shown, never used before."""
    return secrets.token_hex(8)


def new_secret() -> str:
    """A random secret, never used before: only the message's sender and receivers know it."""
    return secrets.token_hex(16)


def check_payload(slot: str) -> str:
    """The content of a new catalog check's message."""
    return f"{slot}:{new_secret()}:look"


def barrier_payload(slot: str) -> str:
    """The content of a new barrier's message; store it durably before it is sent."""
    return f"{slot}:{new_secret()}:barrier"


def made_payload(slot: str, token: str, position: object) -> str:
    """The content of the message by which a store knows the slot that was made for it.

    ``position`` (a number) is where the slot begins: the message says of no other slot that it
    is ours, and none of another one's stream has it and that beginning.
    """
    return f"{slot}:{token}:made:{position}"


class Awaited:
    """The messages that were sent and that the stream hasn't brought yet.

    One thread adds what it is about to send, another one compares what has come.
    ``count_strange`` is called for messages with our prefix that aren't awaited and that aren't
    of another slot's server: of an earlier session, or forged.
    """

    def __init__(self, slot: str, count_strange: Callable[[], None]) -> None:
        self._slot = slot.encode()
        self._count_strange = count_strange
        self._contents: set[bytes] = set()
        self._warned = False

    def add(self, payload: str) -> None:
        """Await this message: it is about to be sent."""
        self._contents.add(payload.encode())

    def meet(self, emitted: Emitted) -> bool:
        """Return True if the message is expected, and take it off the list."""
        if emitted.prefix != PREFIX.encode():
            return False
        # Nothing longer can be a server's message.
        ours = emitted.transactional and len(emitted.content) <= _MOST_BYTES
        content = emitted.content if ours else b""
        if content in self._contents:
            self._contents.discard(content)
            return True
        if not self._is_of_another(content):
            if not self._warned:
                self._warned = True
                _log.info(
                    "unexpected WAL message ignored",
                    reason="an earlier connection of ours sent it, or another program",
                )
            self._count_strange()
        return False

    def _is_of_another(self, content: bytes) -> bool:
        found = _OF_A_SERVER.fullmatch(content)
        return found is not None and found[1] != self._slot


def emit(connection: Connection, payload: str) -> None:
    """Write the message into the WAL, in a transaction of its own (synchronous_commit is local).

    The payload is a parameter: statements are shown in pg_stat_activity and pg_stat_statements.
    """
    connection.execute("SELECT pg_logical_emit_message(true, %s, %s)", (PREFIX, payload))
