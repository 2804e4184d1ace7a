"""Histories: what a position needs to mean something.

A position is only comparable within one history; a failover, another cluster
or a restored backup starts another one.
"""

import re
from typing import NamedTuple

from laredo_model import position as positions
from laredo_model.errors import BadHistory

_TEXT = re.compile(r"(\d{1,20}):(\d{1,10}):(\d{1,10})(?:\+([1-9]\d{0,9}))?\Z")


class History(NamedTuple):
    """One line of a database's history: ``system_identifier:timeline:database_oid``.

    ``restored`` is 0, but for a database that went back to an earlier state without a
    new timeline (a disk's copy put back): then it is the Unix time, in seconds, at which
    that was noticed, written after a plus sign. The three numbers alone are what they were.
    """

    system_identifier: int
    timeline: int
    database_oid: int
    restored: int = 0

    def __str__(self) -> str:
        text = f"{self.system_identifier}:{self.timeline}:{self.database_oid}"
        return f"{text}+{self.restored}" if self.restored else text


def parse(history: str) -> History:
    """The history that ``history`` writes.

    :raises BadHistory: if it isn't three decimal numbers with colons between, and perhaps
        a plus sign and a fourth.
    """
    match = _TEXT.match(history)
    if match is None:
        raise BadHistory(history)
    return History(int(match[1]), int(match[2]), int(match[3]), int(match[4] or 0))


class Ancestor(NamedTuple):
    """A history that goes on in a later one: it is the same up to ``until``, the switch point."""

    history: History
    until: int


class Lineage(NamedTuple):
    """A history, and those that it comes from by failovers.

    https://www.postgresql.org/docs/current/continuous-archiving.html, Timelines: a promoted
    server's history file says where its timeline left each of those before.
    """

    now: History
    ancestors: tuple[Ancestor, ...] = ()

    def holds(self, history: History, position: int) -> bool:
        """Whether ``position`` of ``history`` means the same in this one."""
        if history == self.now:
            return True
        return any(
            ancestor.history == history and position <= ancestor.until
            for ancestor in self.ancestors
        )


def ancestors_to_json(ancestors: tuple[Ancestor, ...]) -> list[list[str]]:
    """What :func:`ancestors_from_json` reads."""
    return [[str(ancestor.history), positions.text(ancestor.until)] for ancestor in ancestors]


def ancestors_from_json(stored: list[list[str]]) -> tuple[Ancestor, ...]:
    """What :func:`ancestors_to_json` wrote."""
    return tuple(Ancestor(parse(text), positions.parse(until)) for text, until in stored)
