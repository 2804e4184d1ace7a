"""WAL positions, and histories: the lines of WAL within which positions can be compared.

A failover, another cluster or a restored backup starts another history.
"""

import re
from typing import NamedTuple, NewType

from laredo_model.errors import BadHistory, BadPosition

# WAL positions: 64-bit integers, written ``X/X`` in hex without padding.
#
# The position of a change is the END of its transaction's commit record (pgoutput's end_lsn), so
# all changes of one transaction share one position.
# https://www.postgresql.org/docs/current/datatype-pg-lsn.html

Position = NewType("Position", int)

ZERO = Position(0)
_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})\Z")


def parse(position: str) -> Position:
    """Parse a position's text.

    :raises BadPosition: if it isn't of the form X/X.
    """
    match = _TEXT.match(position)
    if match is None:
        raise BadPosition(position)
    return Position(int(match[1], 16) << 32 | int(match[2], 16))


def text(position: int) -> str:
    """A position as PostgreSQL writes it: ``0/19F000``."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def object_name(position: int) -> str:
    """A position as object keys contain it, with ``_`` for ``/``: ``0_19F000``."""
    return f"{position >> 32:X}_{position & 0xFFFFFFFF:X}"


_HISTORY = re.compile(r"(\d{1,20}):(\d{1,10}):(\d{1,10})(?:\+([1-9]\d{0,9}))?\Z")


class History(NamedTuple):
    """The identity of one line of WAL: ``system_identifier:timeline:database_oid``."""

    #: The cluster's identifier, from pg_control_system().
    system_identifier: int
    #: The WAL timeline; a failover starts a new one.
    timeline: int
    #: pg_database.oid.
    database_oid: int
    #: 0, except for a database that went back to an earlier state without a new timeline (from a
    #: disk snapshot): the Unix time at which that was noticed, written as ``+time``.
    restored: int = 0

    def __str__(self) -> str:
        text = f"{self.system_identifier}:{self.timeline}:{self.database_oid}"
        return f"{text}+{self.restored}" if self.restored else text


def parse_history(history: str) -> History:
    """Parse a history's text.

    :raises BadHistory: if it isn't three decimal numbers with colons between, and perhaps
        a plus sign and a fourth.
    """
    match = _HISTORY.match(history)
    if match is None:
        raise BadHistory(history)
    return History(int(match[1]), int(match[2]), int(match[3]), int(match[4] or 0))


def goes_on(before: History, after: History) -> bool:
    """True if ``after`` may continue ``before``: a server of the cluster was promoted since."""
    cluster, timeline, database, _ = before
    same_database = (cluster, database) == (after.system_identifier, after.database_oid)
    return same_database and timeline < after.timeline


class Ancestor(NamedTuple):
    """An earlier history of the same database, up to the failover that ended it."""

    #: The earlier history.
    history: History
    #: The switch point: the last position that both histories share.
    until: int


class Lineage(NamedTuple):
    """A history, and its ancestors: the histories before each failover.

    https://www.postgresql.org/docs/current/continuous-archiving.html, Timelines: a promoted
    server's history file contains the switch point of each timeline before its own.
    """

    #: The database's present history.
    now: History
    #: The histories before it.
    ancestors: tuple[Ancestor, ...] = ()

    def holds(self, history: History, position: int) -> bool:
        """True if ``position`` of ``history`` means the same in this one."""
        if history == self.now:
            return True
        return any(
            ancestor.history == history and position <= ancestor.until
            for ancestor in self.ancestors
        )


def ancestors_to_json(ancestors: tuple[Ancestor, ...]) -> list[list[str]]:
    """The ancestors as JSON; :func:`ancestors_from_json` reads it."""
    return [[str(ancestor.history), text(ancestor.until)] for ancestor in ancestors]


def ancestors_from_json(stored: list[list[str]]) -> tuple[Ancestor, ...]:
    """Parse what :func:`ancestors_to_json` wrote."""
    return tuple(Ancestor(parse_history(text), parse(until)) for text, until in stored)
