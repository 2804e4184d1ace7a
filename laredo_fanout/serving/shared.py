"""The objects that all sessions of a serving process share."""

from __future__ import annotations

from dataclasses import dataclass

from laredo_fanout.serving.drain import Drain
from laredo_fanout.serving.journal.recent import RecentRecords
from laredo_fanout.serving.options import ListenerOptions
from laredo_fanout.serving.ports import Wakeups
from laredo_fanout.serving.replay.archives import Archives
from laredo_fanout.serving.snapshot_rows import SpoolDirectory
from laredo_fanout.serving.struct_rows import StructRows
from laredo_fanout.store.reader import StoreReader


@dataclass(frozen=True, slots=True)
class Shared:
    """The shared objects, one of these per process."""

    reader: StoreReader
    recent: RecentRecords
    wakeups: Wakeups
    drain: Drain
    listener: ListenerOptions
    structs: StructRows
    spool: SpoolDirectory
    archives: Archives
