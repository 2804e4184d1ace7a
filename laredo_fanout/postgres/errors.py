"""Errors of PostgreSQL: of connections, the slot and the stream.

SourceError                PostgreSQL, or what we need of it
├── SourceUnavailable        can't connect, or the connection was cut: tried again
├── RightsMissing            the role lacks a right; names the GRANT
├── SlotLost                 the slot, its publication or its history isn't the stored one
├── SlotInUse                another process streams from the slot
└── ReplicationStreamBroken  bytes that are not the protocol's

Those of tables and of the server's settings are in laredo_fanout/errors.py.
"""

from __future__ import annotations


class SourceError(Exception):
    """Root of the errors of PostgreSQL and of what the server needs there."""


class SourceUnavailable(SourceError):
    """PostgreSQL can't be connected to, or the connection was cut; retried with growing pauses."""


class RightsMissing(SourceError):
    """The role lacks a right; the message holds the statement that grants it."""


class SlotLost(SourceError):
    """Changes between the stored position and the slot can't be had any more.

    ``on_slot_lost = recreate`` makes a new slot and copies the tables again.
    """


class SlotInUse(SourceError):
    """Another process streams from the slot; retried with growing pauses."""


class ReplicationStreamBroken(SourceError):
    """The stream sent what the protocol doesn't allow."""
