"""A relay in the test's own process: its ingest in a thread, its store behind a real server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laredo_fanout.batch.status import CommitInfo
from laredo_fanout.relay.ingest import RelayIngest
from laredo_fanout.relay.path import RelayOptions
from laredo_fanout.serving.options import ListenerOptions, ServingOptions, ServingTableOptions
from laredo_fanout.serving.server import serve
from laredo_fanout.source_options import SourceTableOptions
from laredo_fanout.store.table import TableRecord
from laredo_fanout.store.writer import Store
from tests.support.processes import PATIENCE_S, until
from tests.support.server.serving_world import USERS, Registry, Wakeups


@dataclass
class Relayed:
    """A running relay, and the port of its clients."""

    ingest: RelayIngest
    store: Store
    port: int
    names: Sequence[str]
    error: BaseException | None = None

    def record(self, name: str = USERS) -> TableRecord:
        """The incarnation that is shown."""
        found = [r for r in self.store.tables.values() if r.qualified == name and r.shown]
        assert len(found) == 1, self.store.tables
        return found[0]

    async def until(self, position: int, name: str = USERS) -> TableRecord:
        """Wait until the table has everything up to this position."""

        def there() -> bool:
            assert self.error is None, self.error
            shown = [r for r in self.store.tables.values() if r.qualified == name and r.live]
            return any(r.position >= position for r in shown)

        await until(there)
        return self.record(name)


@asynccontextmanager
async def relaying(
    path: Path, upstream: int, names: Sequence[str] = (USERS,), port: int = 0, **given: Any
) -> AsyncIterator[Relayed]:
    """A relay of the server at this port; ``given`` are options of RelayOptions."""
    loop, wakeups, drain = asyncio.get_running_loop(), Wakeups(), asyncio.Event()
    tables = [SourceTableOptions(*name.split(".")) for name in names]

    def committed(_: CommitInfo) -> None:
        loop.call_soon_threadsafe(wakeups.notify)

    with Store.open(path, max_size=1 << 30) as store:
        listening: asyncio.Future[int] = loop.create_future()
        serving = asyncio.create_task(
            serve(
                ServingOptions(
                    ListenerOptions("127.0.0.1", port, drain_grace_s=0.2),
                    {name: ServingTableOptions() for name in names},
                ),
                store.reader(),
                wakeups,
                Registry(),
                drain,
                on_listening=listening.set_result,
            )
        )
        options = RelayOptions(f"127.0.0.1:{upstream}", "relay", path_interval=0.2, **given)
        ingest = RelayIngest(options, tables, store, committed)
        running = Relayed(ingest, store, await listening, names)

        def run() -> None:
            try:
                ingest.run()
            except Exception as error:  # noqa: BLE001 - the test's own thread shows it
                running.error = error

        thread = threading.Thread(target=run, name="relay", daemon=True)
        thread.start()
        try:
            yield running
        finally:
            ingest.stop()
            await asyncio.to_thread(thread.join, PATIENCE_S)
            drain.set()
            await serving
        assert not thread.is_alive()
        assert running.error is None, running.error
