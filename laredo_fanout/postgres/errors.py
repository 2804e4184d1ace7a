"""Errors of PostgreSQL: of connections, the slot and the stream.

SourceError                PostgreSQL, or what we need of it
├── SourceUnavailable        can't connect, or the connection was cut: tried again
├── RightsMissing            the role lacks a right; names the GRANT
├── SlotLost                 the slot, its publication or its history isn't the stored one
├── SlotInUse                another process streams from the slot
└── StreamFault              the reason is in the WAL: see ingest/stream_faults.py
    ├── DecodingFailed         PostgreSQL can't decode a transaction
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


class StreamFault(SourceError):
    """The stream ended for a reason that is in the WAL, or in its decoding: an attempt from the
    same position meets it again."""


class DecodingFailed(StreamFault):
    """PostgreSQL ended the stream with an error of its decoding, or of its output plugin."""

    def __init__(self, sqlstate: str, text: str) -> None:
        super().__init__(f"PostgreSQL can't decode a transaction ({sqlstate}): {text}")
        self.sqlstate = sqlstate
        self.text = text


class ReplicationStreamBroken(StreamFault):
    """The stream sent what the protocol doesn't allow."""
