"""The serving of one process: its endpoints, what their sessions share, and the drain."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from laredo_fanout.serving.call import Tokens
from laredo_fanout.serving.endpoints.connect import ConnectEndpoint
from laredo_fanout.serving.endpoints.grpc import GrpcEndpoint
from laredo_fanout.serving.endpoints.probes import Readiness
from laredo_fanout.serving.errors import Draining
from laredo_fanout.serving.journal import RecentRecords, Tails
from laredo_fanout.serving.options import ServingOptionChanges, ServingOptions
from laredo_fanout.serving.ports import Registry, Wakeups
from laredo_fanout.serving.replay import Outcome
from laredo_fanout.serving.service import ReplicationService, ReportStandby
from laredo_fanout.serving.shared import (
    Archives,
    Drain,
    SentCounts,
    ServingResources,
    no_repair,
)
from laredo_fanout.serving.snapshot_rows import SpoolDirectory
from laredo_fanout.serving.struct_rows import StructRows
from laredo_fanout.store.errors import Damage
from laredo_fanout.store.reader import StoreReader

log = structlog.get_logger(__name__)

_PROBES_S = 1.0
"""Time for watchers of the health to learn that the server drains, in seconds."""


class ServingEndpoint(Protocol):
    """A port that brings calls to the service."""

    port: int

    async def start(self) -> None:
        """Take connections from now on."""
        ...

    async def drain(self, grace_s: float) -> None:
        """Stop listening at once, and return when all calls have ended, at the latest after the
        grace; called again with 0, it cuts those that are left."""
        ...


def _ignore(table: str, outcome: Outcome) -> None:
    """Do nothing: replays aren't counted here."""


def _no_check() -> None:
    """Do nothing: there is no PostgreSQL whose catalog could be checked."""


async def serve(
    options: ServingOptions,
    reader: StoreReader,
    wakeups: Wakeups,
    registry: Registry,
    drain: asyncio.Event,
    *,
    on_listening: Callable[[int], None] | None = None,
    on_replay: Callable[[str, Outcome], None] = _ignore,
    request_check: Callable[[], None] = _no_check,
    report_damage: Callable[[Damage], None] = no_repair,
    readiness: Readiness | None = None,
    sent: SentCounts | None = None,
    changes: ServingOptionChanges | None = None,
    report_standby: ReportStandby | None = None,
) -> None:
    """Listen and serve until `drain` is set, then send GoAway, wait for the grace and return.

    `on_listening` is called once with gRPC's port (useful with port 0), `on_replay` with the table
    and the outcome of each replay from an archive. `request_check` is called when a client waits
    for a catalog check, `report_damage` when the store turns out to be damaged; neither may block.
    `readiness` is the server's, as the main process reports it; without it a process that listens
    is ready. `sent` counts what is sent to clients. `changes` brings other tables and their
    options, another tokens file, another grace. `report_standby` takes the reports of servers that
    share the slot.

    :raises CannotListen: the address is taken, or the TLS files can't be used.
    :raises BadTokensFile: the tokens file can't be used.
    """
    listener = options.listener
    tokens = Tokens(listener.tokens_file) if listener.tokens_file is not None else None
    going = Drain()
    archives = Archives(
        {name: table.archive for name, table in options.tables.items() if table.archive},
        listener.spool_path or reader.path,
        on_replay,
    )
    shared = ServingResources(
        reader,
        RecentRecords(reader),
        wakeups,
        going,
        listener,
        StructRows(),
        SpoolDirectory(listener.spool_path or reader.path, listener.spool_max_bytes),
        archives,
        SentCounts() if sent is None else sent,
        report_damage,
    )
    tails = Tails(options.tables, reader, wakeups, request_check)
    service = ReplicationService(
        shared, options.tables, tails, registry, tokens, report_standby=report_standby
    )
    readiness = readiness or Readiness(ready=True)
    endpoints: list[ServingEndpoint] = [GrpcEndpoint(service, listener, readiness)]
    if listener.connect is not None:
        endpoints.append(ConnectEndpoint(service, listener, listener.connect))
    tails.refresh()
    for endpoint in endpoints:
        await endpoint.start()
    ports = [endpoint.port for endpoint in endpoints]
    log.info("serving started", host=listener.host, ports=ports, tables=sorted(options.tables))
    if on_listening is not None:
        on_listening(endpoints[0].port)

    async def change(new: ServingOptions) -> None:
        nonlocal listener
        listener = new.listener
        if tokens is not None and listener.tokens_file is not None:
            tokens.move(listener.tokens_file)
        await service.change_tables(new.tables)

    following = [asyncio.create_task(tails.run())]
    if changes is not None:
        following.append(asyncio.create_task(changes.follow(change)))
    if tokens is not None:
        following.append(asyncio.create_task(tokens.follow(service.check_tokens)))
    draining = asyncio.create_task(drain.wait())
    try:
        await asyncio.wait({*following, draining}, return_when=asyncio.FIRST_COMPLETED)
        for each in following:
            if each.done():
                each.result()
        await readiness.drain(_PROBES_S)
        await _drain(service, going, tails, endpoints, listener.drain_grace_s)
    finally:
        for task in (draining, *following):
            task.cancel()
        await asyncio.gather(draining, *following, return_exceptions=True)
        await asyncio.gather(*(endpoint.drain(0) for endpoint in endpoints))
        archives.close()


async def _drain(
    service: ReplicationService,
    going: Drain,
    tails: Tails,
    endpoints: Sequence[ServingEndpoint],
    grace_s: float,
) -> None:
    """Send GoAway to the clients, and wait until they have left or the grace is over."""
    deadline = time.time() + grace_s
    going.deadline_ms = int(deadline * 1000)
    log.info("drain started", clients=service.open_streams, grace_s=grace_s)
    for tail in tails:
        tail.notify_all()
    # They stop listening at once, so that new connections reach the processes that stay.
    stopping = asyncio.gather(*(endpoint.drain(grace_s + 1) for endpoint in endpoints))
    await asyncio.wait({stopping}, timeout=grace_s)
    service.end_all(Draining("the server is draining: connect elsewhere"))
    await stopping
