"""Changes: what happened to one row, or to all of them."""

from enum import IntEnum
from typing import NamedTuple


class Action(IntEnum):
    """What a change does; the numbers are those of the journal and the batch wire form."""

    INSERT = 1
    UPDATE = 2
    DELETE = 3
    TRUNCATE = 4


class Change(NamedTuple):
    """One change of one row, by its key.

    ``old`` is None on INSERT, ``new`` on DELETE; a TRUNCATE has neither and an
    empty key. A change of a row's key is a DELETE and an INSERT.
    """

    action: Action
    key: bytes
    old: bytes | None
    new: bytes | None


TRUNCATION = Change(Action.TRUNCATE, b"", None, None)
