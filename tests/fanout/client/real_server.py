"""The real serving code over a store that the test writes, in one process."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from laredo_fanout.serving.options import (
    ConnectOptions,
    ListenerOptions,
    ServingOptions,
    ServingTableOptions,
    TlsFiles,
)
from laredo_fanout.serving.server import serve
from laredo_fanout.store.environment import SourceIdentity
from laredo_fanout.store.writer import Store
from laredo_model import position
from laredo_model.column import Column
from laredo_model.line import Action
from tests.support.server.store_sample import TRUNCATION, Step, changes
from tests.support.writer.served import Registry, Wakeups

TABLE = "public.config"
OTHER = "public.other"
HISTORY = position.parse_history("7300000000000000001:1:16384")
COLUMNS = (
    Column("instance", "text", nullable=False, ordinal=1, key_ordinal=1),
    Column("key", "text", nullable=False, ordinal=2, key_ordinal=2),
    Column("tenant", "text", ordinal=3),
    Column("size", "int8", ordinal=4),
)

Write = tuple[Action, str, str, str, int]  # action, instance, key, tenant, size


def key_of(instance: str, key: str) -> bytes:
    return f'["{instance}","{key}"]'.encode()


def line_of(instance: str, key: str, tenant: str, size: int) -> bytes:
    text = f'{{"instance":"{instance}","key":"{key}","tenant":"{tenant}","size":{size}}}'
    return text.encode()


def _step(write: Write) -> Step:
    action, instance, key, tenant, size = write
    if action is Action.TRUNCATE:
        return TRUNCATION
    line = b"" if action is Action.DELETE else line_of(instance, key, tenant, size)
    return action, key_of(instance, key).decode(), line


class Source:
    """Substitute for the ingest process: writes transactions and wakes the serving side.

    Positions go up by 16 from 0x1000. Call it from any thread. There is an ``other`` table, empty.
    """

    def __init__(self, path: Path) -> None:
        self.store = Store.open(path, max_size=256 << 20)
        self.wakeups = Wakeups()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.servers = 0
        self.position = 0x1000
        with self.store.transaction() as txn:
            txn.set_source(SourceIdentity(HISTORY, "slot", "publication"))
            self.table_id = txn.add_table("public", "config", 1, COLUMNS).id
            self.other_id = txn.add_table("public", "other", 1, COLUMNS).id
            for table_id in (self.table_id, self.other_id):
                txn.publish(table_id, self.position, 0)
            txn.set_position(self.position, 0)

    def write(self, *transactions: Sequence[Write], other: bool = False) -> int:
        """Commit these transactions; gives the position of the last."""
        return self.write_lines(*(list(map(_step, rows)) for rows in transactions), other=other)

    def write_lines(self, *transactions: Sequence[Step], other: bool = False) -> int:
        """Commit as :meth:`write` does, rows of any columns."""
        first, self.position = self.position + 16, self.position + 16 * len(transactions)
        made = changes(*zip(range(first, self.position + 1, 16), transactions, strict=True))
        with self.store.transaction() as txn:
            txn.apply(self.other_id if other else self.table_id, made)
            txn.set_position(self.position, self.position)
        self._wake()
        return self.position

    def forget_journal(self) -> None:
        """Prune all but the newest transaction."""
        self.store.prune(self.table_id, 1, 0.0, 4e9)
        self._wake()

    def recopy(self, columns: tuple[Column, ...], lines: dict[bytes, bytes]) -> None:
        """The table has other columns now."""
        self.position += 16
        with self.store.transaction() as txn:
            self.table_id = txn.add_table("public", "config", 1, columns).id
            txn.fill(self.table_id, list(lines), list(lines.values()))
            txn.publish(self.table_id, self.position, 0)
            txn.set_position(self.position, 0)
        self._wake()

    def _wake(self) -> None:
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.wakeups.notify)


@asynccontextmanager
async def serving(
    source: Source,
    port: int = 0,
    grace: float = 5.0,
    tls: TlsFiles | None = None,
    tokens: Path | None = None,
    *,
    connect: int | None = None,
) -> AsyncIterator[int]:
    """Serve it on loopback, by ``connect`` on that port too; leaving says GoAway and drains."""
    source.loop = asyncio.get_running_loop()
    source.servers += 1
    listening: asyncio.Future[int] = source.loop.create_future()
    drain = asyncio.Event()
    options = ServingOptions(
        ListenerOptions(
            host="127.0.0.1",
            port=port,
            tls=tls,
            tokens_file=tokens,
            drain_grace_s=grace,
            behind_wait_s=0.2,
            connect=None if connect is None else ConnectOptions(port=connect),
        ),
        {name: ServingTableOptions(heartbeat_interval_s=0.2) for name in (TABLE, OTHER)},
    )
    with source.store.reader() as reader:
        server = asyncio.create_task(
            serve(
                options,
                reader,
                source.wakeups,
                Registry(),
                drain,
                on_listening=listening.set_result,
            )
        )
        try:
            await asyncio.wait({server, listening}, return_when=asyncio.FIRST_COMPLETED)
            if server.done():
                server.result()
            yield listening.result()
        finally:
            drain.set()
            await server
            source.servers -= 1
            if not source.servers:
                source.loop = None
