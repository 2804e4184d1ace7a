"""A base client that keeps rows as the original's Go clients do, and counts what it misreads.

It keeps the sequence and the position of the last entry, and the id of the last snapshot; it begins
a snapshot by forgetting its rows and its position, and has the snapshot's sequence at its end. The
DELETE of a row that it doesn't have tells its listener nothing that could be told from a TRUNCATE.
"""

from __future__ import annotations

from typing import Any, Protocol

from laredo_fanout.wire import replication_pb2 as wire


class Messages(Protocol):
    """The client's end of a stream, by gRPC or by Connect."""

    async def next(self) -> Any:
        """The next message that isn't a heartbeat."""
        ...


class BaseFollower:
    """The rows of one client over any number of streams."""

    def __init__(self) -> None:
        self.names: dict[int, str | None] = {}
        self.sequence = 0
        self.position = ""
        self.snapshot_id = ""
        self.ready = False
        self.modes: list[int] = []
        self.taken: list[int] = []
        """The sequences of all entries, in the order of their coming, since the last snapshot."""
        self.misread = 0

    def request(self, way: str = "both") -> dict[str, Any]:
        """Fields with which it resumes.

        By position and sequence, by sequence alone, or as after a GoAway, by position alone (once
        it has one: until then it gets a snapshot).
        """
        return {
            "last_known_source_position": "" if way == "sequence" else self.position,
            "last_known_sequence": 0 if way == "position" and self.position else self.sequence,
            "last_snapshot_id": self.snapshot_id,
        }

    async def follow(self, stream: Messages, upto: int, stop_after: int | None = None) -> bool:
        """Take messages until the stream's sequence is `upto`; False if lost before."""
        left = stop_after
        self.ready = False
        while not (self.ready and self.sequence >= upto):
            if left is not None and not left:
                return False
            self.take(await stream.next())
            left = None if left is None else left - 1
        return True

    def take(self, message: Any) -> None:
        if isinstance(message, wire.SyncHandshake):
            self.modes.append(message.mode)
        elif isinstance(message, wire.SnapshotBegin):
            self.names, self.position, self.snapshot_id = {}, "", message.snapshot_id
            self.taken = []
        elif isinstance(message, wire.SnapshotRow):
            self.names[int(message.row["id"])] = message.row["name"]
        elif isinstance(message, wire.SnapshotEnd):
            self.ready, self.sequence = True, message.sequence
        elif isinstance(message, wire.ReplicationJournalEntry):
            self._apply(message)

    def _apply(self, entry: Any) -> None:
        self.ready, self.sequence, self.position = True, entry.sequence, entry.source_position
        self.taken.append(entry.sequence)
        if entry.action == "TRUNCATE":
            self.names = {}
        elif entry.action == "DELETE":
            number = int(entry.old_values["id"])
            self.misread += number not in self.names
            self.names.pop(number, None)
        else:
            row = dict(entry.new_values)
            self.names[int(row["id"])] = row.get("name")
