"""WAL positions: 64-bit integers, written ``X/X`` in hex without padding.

The position of a change is the END of its transaction's commit record
(pgoutput's end_lsn), so all changes of one transaction share one position.
https://www.postgresql.org/docs/current/datatype-pg-lsn.html
"""

import re
from typing import NewType

from laredo_model.errors import BadPosition

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
    """A position as object keys have it, with ``_`` for ``/``: ``0_19F000``."""
    return f"{position >> 32:X}_{position & 0xFFFFFFFF:X}"
