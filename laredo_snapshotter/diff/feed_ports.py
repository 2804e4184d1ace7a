"""Interfaces of the feed: a committer of sealed buffers, a table."""

from typing import Protocol

from laredo_fanout.client.events import Handshake, SnapshotBegin, SnapshotEnd
from laredo_model.column import Column
from laredo_model.position import History, Position
from laredo_snapshotter.diff.buffer import Sealed


class Outlet(Protocol):
    """Commits sealed buffers, one after the other (committer.py)."""

    @property
    def blocked(self) -> object | None:
        """Not None while a destination is unavailable."""

    @property
    def waiting_bytes(self) -> int:
        """Memory that waits to be committed."""

    @property
    def waiting_on_disk(self) -> bool:
        """True if a buffer with a spill file waits to be committed."""

    @property
    def unverified(self) -> object | None:
        """Not None while the next commit waits to be verified."""

    def put(self, sealed: Sealed) -> None:
        """Commit it after all that was put before."""

    def cut_off(self) -> int:
        """Discard the artifacts that aren't verified, and return their number."""

    async def progress(self) -> None:
        """Wait until something was committed, or couldn't be."""

    async def drained(self) -> None:
        """Wait until all is committed."""

    async def settled(self) -> None:
        """Wait until all is committed, but for what must wait to be verified."""


class StreamedBase(Protocol):
    """A base that the live stream itself brings."""

    async def write(self, keys: list[bytes], lines: list[bytes]) -> None:
        """Write the next rows of the base."""

    async def finish(self, end: SnapshotEnd) -> None:
        """All rows are there: commit it as a new epoch."""

    async def abort(self) -> None:
        """Discard the base."""


class FeedTable(Protocol):
    """Interface of the feed to the table's writer (table/session.py)."""

    def fits(self, handshake: Handshake) -> bool:
        """True if changes from this stream may follow the archive's head."""

    @property
    def archive_end(self) -> tuple[Position, History] | None:
        """End of the archive; None if nothing may follow its artifacts."""

    async def begin_base(
        self, begin: SnapshotBegin, columns: tuple[Column, ...], history: History
    ) -> StreamedBase:
        """The stream begins a snapshot: all that was taken before is committed."""
