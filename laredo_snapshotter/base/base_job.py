"""The writer of a base: a snapshot stream's rows, encoded in threads, one batch ahead."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import datetime
from typing import TypeVar

from laredo_archive.write.base_upload import Base, BaseUpload
from laredo_archive.write.table_archive import TableArchive
from laredo_fanout.client.events import SnapshotEnd
from laredo_model.checksum import StateChecksum
from laredo_model.column import Column, key_columns
from laredo_model.history import History
from laredo_model.position import Position
from laredo_snapshotter.config import TableConfig
from laredo_snapshotter.errors import SnapshotDamaged

Result = TypeVar("Result")


async def open_base(
    archive: TableArchive,
    config: TableConfig,
    executor: Executor,
    *,
    position: Position,
    history: History,
    columns: tuple[Column, ...],
) -> "BaseWriter":
    """Begin a base of the table as it is at ``position``."""

    def begin() -> BaseWriter:
        upload = archive.snapshot(
            position=position,
            history=history,
            columns=columns,
            key_fields=[column.name for column in key_columns(columns)],
            formats=config.formats.snapshot,
        )
        return BaseWriter(config.name, upload, executor)

    return await asyncio.get_running_loop().run_in_executor(executor, begin)


class BaseWriter:
    """Writes one base. Encoding and files are a thread's business; the loop only hands over."""

    def __init__(self, table: str, upload: BaseUpload, executor: Executor) -> None:
        self.rows = 0
        """Rows handed over so far."""
        self._table = table
        self._upload = upload
        self._executor = executor
        self._writing: asyncio.Future[None] | None = None

    async def write(self, keys: list[bytes], lines: list[bytes]) -> None:
        """Rows, in key order.

        :raises CommitUnavailable: if a destination is unavailable; the base has to be made again.
        """
        # One batch is written while the next is received: more would only be memory.
        await self._written()
        self._writing = self._in_thread(lambda: self._upload.write(keys, lines))
        self.rows += len(lines)

    async def finish(self, end: SnapshotEnd, to_time: datetime | None) -> Base:
        """The base, on every destination and in no manifest.

        :raises SnapshotDamaged: if it isn't what the server says it sent.
        :raises CommitUnavailable: if a destination is unavailable; the base has to be made again.
        """
        await self._written()
        base = await self._in_thread(lambda: self._upload.finish(to_time))
        received = StateChecksum.from_hex(base.rows, base.state_checksum)
        rows = base.rows if end.rows is None else end.rows
        sent = StateChecksum.from_hex(rows, end.state_checksum or base.state_checksum)
        if sent != received:
            raise SnapshotDamaged(self._table, sent, received)
        return base

    async def abort(self) -> None:
        """Forget it; does nothing after finish()."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
            if not self._writing.cancelled():
                self._writing.exception()
            self._writing = None
        await self._in_thread(self._upload.abort)

    async def _written(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            try:
                # A cancelled wait must not leave the thread writing behind abort()'s back.
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                self._writing = writing
                raise

    def _in_thread(self, work: Callable[[], Result]) -> "asyncio.Future[Result]":
        return asyncio.get_running_loop().run_in_executor(self._executor, work)
