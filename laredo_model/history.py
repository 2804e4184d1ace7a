"""Histories: what a position needs to mean something.

A position is only comparable within one history; a failover, another cluster
or a restored backup starts another one.
"""

import re
from typing import NamedTuple

from laredo_model.errors import BadHistory

_TEXT = re.compile(r"(\d{1,20}):(\d{1,10}):(\d{1,10})\Z")


class History(NamedTuple):
    """One line of a database's life: ``system_identifier:timeline:database_oid``."""

    system_identifier: int
    timeline: int
    database_oid: int

    def __str__(self) -> str:
        return f"{self.system_identifier}:{self.timeline}:{self.database_oid}"


def parse(history: str) -> History:
    """The history that ``history`` writes.

    :raises BadHistory: if it isn't three decimal numbers with colons between.
    """
    match = _TEXT.match(history)
    if match is None:
        raise BadHistory(history)
    return History(int(match[1]), int(match[2]), int(match[3]))
