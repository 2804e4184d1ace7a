"""Serving processes over a store that the test writes, and processes that write snapshots."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laredo_fanout.app import logs
from laredo_fanout.app.processes import children as children_
from laredo_fanout.app.processes.children import ServingChildren
from laredo_fanout.app.processes.clients import Clients
from laredo_fanout.app.processes.control_wire import WakeUps
from laredo_fanout.app.processes.snapshot_schedule import SnapshotSchedule
from laredo_fanout.client import Backoff, Endpoint, Subscription, SyncOptions
from laredo_fanout.config import load
from laredo_fanout.serving.options import ListenerOptions, ServingOptions, ServingTableOptions
from laredo_fanout.store.writer import Store
from laredo_fanout.watchdog import Watchdog
from tests.support.processes import until
from tests.support.server.serving_world import USERS, Writer, rows

QUICK = Backoff(initial=0.01, maximum=0.2)
LOGS = logs.LogSettings(logs.JSON)


def serving_children(state: Path, options: ServingOptions, **more: Any) -> ServingChildren:
    """One process that isn't started, unless ``more`` asks for others."""
    given: dict[str, Any] = {"workers": 1, "clients": Clients(10), "wake_ups": WakeUps(), **more}
    return ServingChildren(state=state, options=options, log_settings=LOGS, **given)


def scheduled_snapshots(directory: Path, interval: str = "1s", **more: Any) -> SnapshotSchedule:
    """Snapshots of the table users in the store ``state``, not started."""
    file = directory / "fanout.conf"
    target = f"{{ snapshot {{ interval = {interval} }} }}"
    file.write_text(
        f'state.path = "{directory / "state"}"\n'
        'sources.pg.connection = "postgresql://user@host/db"\n'
        f"tables = [ {{ table = users, targets = [ {target} ] }} ]\n"
    )
    return SnapshotSchedule(load(file), lambda _: True, LOGS, lambda: None, **more)


@dataclass
class Running:
    children: ServingChildren
    clients: Clients
    writer: Writer
    port: int

    def subscription(self, name: str) -> Subscription:
        endpoint = Endpoint(f"127.0.0.1:{self.port}")
        return Subscription(endpoint, SyncOptions(USERS, name), backoff=QUICK)


@asynccontextmanager
async def running(
    tmp_path: Path,
    *,
    workers: int = 1,
    max_clients: int = 100,
    grace: float = 5.0,
    watchdog: Watchdog | None = None,
) -> AsyncIterator[Running]:
    wake_ups, clients = WakeUps(), Clients(max_clients)
    with (
        await children_.reserve("127.0.0.1", 0, "fanout.grpc.port") as held,
        Store.open(tmp_path / "state", max_size=1 << 28) as store,
    ):
        writer = Writer(store, wake_ups)  # type: ignore[arg-type]
        writer.begin()
        writer.publish(rows(0, 10))
        port = held.getsockname()[1]
        listener = ListenerOptions("127.0.0.1", port, drain_grace_s=grace)
        children = serving_children(
            store.path,
            ServingOptions(listener, {USERS: ServingTableOptions(heartbeat_interval_s=3600)}),
            workers=workers,
            clients=clients,
            wake_ups=wake_ups,
            watchdog=watchdog or Watchdog(),
        )
        children.start()
        try:
            world = Running(children, clients, writer, port)
            await until(lambda: children.listening == workers)
            yield world
        finally:
            await children.drain()
