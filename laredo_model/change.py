"""A change: the INSERT, UPDATE or DELETE of one row, or a TRUNCATE of the table."""

from enum import IntEnum
from typing import NamedTuple


class Action(IntEnum):
    """The kind of a change; the numbers are those of the journal and the batch wire form."""

    INSERT = 1
    UPDATE = 2
    DELETE = 3
    TRUNCATE = 4


class Change(NamedTuple):
    """One change of one row. An UPDATE of a row's key is a DELETE and an INSERT."""

    #: INSERT, UPDATE, DELETE or TRUNCATE.
    action: Action
    #: The row's key (:mod:`laredo_model.key`); empty on TRUNCATE.
    key: bytes
    #: The row's line before; None on INSERT and TRUNCATE.
    old: bytes | None
    #: The row's line after; None on DELETE and TRUNCATE.
    new: bytes | None


TRUNCATION = Change(Action.TRUNCATE, b"", None, None)
