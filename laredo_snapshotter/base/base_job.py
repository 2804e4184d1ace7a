"""A base on its way to become a new epoch: its rows are encoded in threads, one batch ahead of the
stream that brings them; whole, it waits in the committer's queue.

The live stream brings one when it can't resume (table/session.py), a second stream brings one for
a re-base (rebase.py).
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import UTC, datetime
from typing import TypeVar

from laredo_archive.write.base_upload import BaseUpload
from laredo_archive.write.table_archive import TableArchive
from laredo_fanout.client.events import SnapshotEnd
from laredo_model.checksum import StateChecksum
from laredo_model.column import Column, key_columns
from laredo_model.position import History, Position
from laredo_snapshotter.commit.committer import Committer
from laredo_snapshotter.config import TableConfig
from laredo_snapshotter.errors import SnapshotDamaged

Result = TypeVar("Result")


async def begin(
    archive: TableArchive,
    config: TableConfig,
    executor: Executor,
    committer: Committer,
    *,
    position: Position,
    history: History,
    columns: tuple[Column, ...],
    continues: bool,
    reason: str | None = None,
) -> "BaseJob":
    """Begin a base of the table as it is at ``position``."""
    began = datetime.now(UTC)

    def upload() -> BaseUpload:
        return archive.snapshot(
            position=position,
            history=history,
            columns=columns,
            key_fields=[column.name for column in key_columns(columns)],
            formats=config.formats.of_bases,
        )

    uploading = await asyncio.get_running_loop().run_in_executor(executor, upload)
    return BaseJob(
        config.name,
        uploading,
        executor,
        committer,
        began=began,
        history=history,
        columns=columns,
        continues=continues,
        reason=reason,
    )


class BaseJob:
    """One base of a table: being written, then ``whole`` and waiting for its commit.

    Encoding and files are a thread's business; the loop only hands over.
    """

    def __init__(
        self,
        table: str,
        upload: BaseUpload,
        executor: Executor,
        committer: Committer,
        *,
        began: datetime,
        history: History,
        columns: tuple[Column, ...],
        continues: bool,
        reason: str | None,
    ) -> None:
        """``continues``: it is the state that the diffs before it lead to; if it isn't,
        ``reason`` is the reason."""
        self.began = began
        self.history = history
        self.columns = columns
        self.rows = 0
        """Rows handed over so far."""
        self._table = table
        self._upload = upload
        self._executor = executor
        self._committer = committer
        self._continues = continues
        self._reason = reason
        self._writing: asyncio.Future[None] | None = None
        self._put: asyncio.Future[asyncio.Future[object]] = (
            asyncio.get_running_loop().create_future()
        )

    @property
    def whole(self) -> bool:
        """True if all its rows are there and its commit was requested."""
        return self._put.done() and not self._put.cancelled()

    async def write(self, keys: list[bytes], lines: list[bytes]) -> None:
        """Rows, in key order.

        :raises CommitUnavailable: if a destination is unavailable; the base has to be made again.
        """
        # One batch is written while the next is received: more would only be memory.
        await self._written()
        self._writing = self._in_thread(lambda: self._upload.write(keys, lines))
        self.rows += len(lines)

    async def finish(self, end: SnapshotEnd) -> None:
        """All rows are there: have the base, which is in no manifest yet, committed.

        :raises SnapshotDamaged: if it isn't what the server reports to have sent.
        :raises CommitUnavailable: if a destination is unavailable; the base has to be made again.
        """
        await self._written()
        # It isn't known when the snapshot's last transaction was committed: not after it began.
        to_time = None if self._continues else self.began
        base = await self._in_thread(lambda: self._upload.finish(to_time))
        received = StateChecksum.from_hex(base.rows, base.state_checksum)
        rows = base.rows if end.rows is None else end.rows
        sent = StateChecksum.from_hex(rows, end.state_checksum or base.state_checksum)
        if sent != received:
            raise SnapshotDamaged(self._table, sent, received)
        self._put.set_result(
            self._committer.put_base(base, continues=self._continues, reason=self._reason)
        )

    async def epoch(self) -> int:
        """The epoch that it began, once it is whole and committed; cancelled if it is aborted.

        :raises ArchiveError: as :meth:`Committer.epoch_of`.
        :raises NeverVerified: if the table was changed before the base was known to be right.
        """
        return await self._committer.epoch_of(await self._put)

    async def abort(self) -> None:
        """Forget it; does nothing after finish()."""
        self._put.cancel()
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
