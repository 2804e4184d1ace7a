"""One LMDB write transaction, as everything that writes within it is given it."""

from dataclasses import dataclass
from typing import Any

from laredo_fanout.store import layout
from laredo_fanout.store.disk import DiskSpace
from laredo_fanout.store.environment import Databases
from laredo_fanout.store.meta import StoreHead
from laredo_fanout.store.table import TableRecord


@dataclass(slots=True)
class WriteContext:
    """The transaction's handles, and the definitions as they are so far within it."""

    #: LMDB's own handle.
    transaction: Any
    #: The environment's databases: rows, marks, journal, definitions.
    databases: Databases
    #: Where room on the disk is taken before it is used.
    disk: DiskSpace
    #: What the store knows of itself: counters, source, marker.
    head: StoreHead
    #: Each incarnation's definition and figures, by id.
    tables: dict[int, TableRecord]
    #: Whether rows or journal records are to be removed later.
    left_garbage: bool = False

    def take_space(self) -> int:
        """A number for the rows of a table that has none yet."""
        space, self.head = self.head.take_space()
        return space

    def discard(self, kind: bytes, number: int) -> None:
        """Have a space's rows, or a table's journal, removed later in small steps."""
        self.left_garbage = True
        self.transaction.put(kind + layout.prefix(number), b"", db=self.databases.meta)
