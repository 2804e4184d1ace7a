"""The objects that all sessions of a serving process share."""

from __future__ import annotations

from dataclasses import dataclass

from laredo_fanout.serving.journal.recent import RecentRecords
from laredo_fanout.serving.options import ListenerOptions
from laredo_fanout.serving.ports import Wakeups
from laredo_fanout.serving.replay.archives import Archives
from laredo_fanout.serving.sent import SentCounts
from laredo_fanout.serving.snapshot_rows import SpoolDirectory
from laredo_fanout.serving.struct_rows import StructRows
from laredo_fanout.store.reader import StoreReader


class Drain:
    """The drain's deadline and reason.

    `deadline_ms` is 0 until the server drains, then the Unix time in milliseconds by which clients
    must leave.
    """

    def __init__(self) -> None:
        self.deadline_ms = 0
        self.reason = ""

    def begin(self, reason: str, deadline_ms: int) -> None:
        """Refuse new sessions from now on and notify the open ones to leave."""
        self.reason = reason
        self.deadline_ms = deadline_ms


@dataclass(frozen=True, slots=True)
class ServingResources:
    """The shared objects, one of these per process."""

    reader: StoreReader
    recent: RecentRecords
    wakeups: Wakeups
    drain: Drain
    listener: ListenerOptions
    structs: StructRows
    spool: SpoolDirectory
    archives: Archives
    sent: SentCounts
