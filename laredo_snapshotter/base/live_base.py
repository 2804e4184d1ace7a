"""The base of a new epoch as the live stream brings it: being written, then whole and waiting."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from laredo_archive.manifest.head import Head
from laredo_fanout.client.events import SnapshotEnd
from laredo_model.column import Column
from laredo_model.history import History
from laredo_snapshotter.base.base_writer import BaseWriter
from laredo_snapshotter.diff.shape import same_shape


class WaitingBase(NamedTuple):
    """A base that waits for its commit: the archive will end with it."""

    history: History
    columns: tuple[Column, ...]
    committing: "asyncio.Task[None]"


@dataclass(frozen=True)
class LiveBase:
    """The feed's view of it. ``reason``: why it doesn't continue the epoch before; ``put`` has it
    committed, ``dropped`` is called when it won't be."""

    writer: BaseWriter
    began: datetime
    columns: tuple[Column, ...]
    history: History
    reason: str | None
    put: "Callable[[LiveBase, SnapshotEnd], Awaitable[None]]"
    dropped: Callable[[], None]

    async def write(self, keys: list[bytes], lines: list[bytes]) -> None:
        """Some rows."""
        await self.writer.write(keys, lines)

    async def finish(self, end: SnapshotEnd) -> None:
        """All rows are there."""
        await self.put(self, end)

    async def abort(self) -> None:
        """Forget it."""
        self.dropped()
        await self.writer.abort()


def why_new_epoch(
    head: Head | None, columns: tuple[Column, ...], history: History, sent_reason: str
) -> str | None:
    """Why a base doesn't continue what ``head`` ends; None if there is nothing before it.

    ``sent_reason`` is the server's.
    """
    if head is None:
        return None
    if head.history != history:
        return f"the history was {head.history} and is {history} now" + (
            f": {sent_reason}" if sent_reason else ""
        )
    if not same_shape(columns, head.columns):
        return "the table's columns changed"
    return sent_reason or "the server gave no reason"
