"""The gRPC server of one serving process."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import structlog

from laredo_fanout.serving.calls.tokens import Tokens
from laredo_fanout.serving.drain import Drain
from laredo_fanout.serving.errors import CannotListen, Draining
from laredo_fanout.serving.journal.recent import RecentRecords
from laredo_fanout.serving.journal.tail import Tails
from laredo_fanout.serving.options import ListenerOptions, ServingOptions, TlsFiles
from laredo_fanout.serving.ports import Registry, Wakeups
from laredo_fanout.serving.replay.archives import Archives
from laredo_fanout.serving.replay.plan import Outcome
from laredo_fanout.serving.service import ReplicationService
from laredo_fanout.serving.shared import Shared
from laredo_fanout.serving.snapshot_rows import SpoolDirectory
from laredo_fanout.serving.struct_rows import StructRows
from laredo_fanout.store.reader import StoreReader

log = structlog.get_logger(__name__)

_UNLIMITED = 1 << 30
_CHANNEL_OPTIONS = (
    ("grpc.so_reuseport", 1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", 1 << 20),
    # A peer that vanished without a word is noticed, its session ended.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Who connects and says nothing holds a descriptor no longer than this.
    ("grpc.server_handshake_timeout_ms", 10_000),
)


def _most_connections() -> int:
    """Half of the descriptors that this process may have: the others are for spools and archives.

    gRPC itself waits, and says so in the log, where there is no descriptor for a connection.
    """
    may_have, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if may_have == resource.RLIM_INFINITY else may_have // 2


def _ignore(table: str, outcome: Outcome) -> None:
    """Do nothing: nobody counts."""


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
) -> None:
    """Listen and serve until `drain` is set, then say GoAway, wait for the grace and return.

    `on_listening` is called once with the bound port (useful with port 0), `on_replay` with the
    table and the outcome of each replay from an archive. `request_check` is called when a client
    waits for a check of PostgreSQL's catalog; it must not block.

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
    shared = Shared(
        reader,
        RecentRecords(reader),
        wakeups,
        going,
        listener,
        StructRows(),
        SpoolDirectory(listener.spool_path or reader.path, listener.spool_max_bytes),
        archives,
    )
    tails = Tails(options.tables, reader, wakeups, request_check)
    service = ReplicationService(shared, options.tables, tails, registry, tokens)
    connections = ("grpc.max_allowed_incoming_connections", _most_connections())
    server = grpc.aio.server(options=(*_CHANNEL_OPTIONS, connections))
    server.add_generic_rpc_handlers((service.handlers(),))
    port = _listen(server, listener)
    tails.refresh()
    await server.start()
    log.info("serving", host=listener.host, port=port, tables=sorted(options.tables))
    if on_listening is not None:
        on_listening(port)
    following = [asyncio.create_task(tails.run())]
    if tokens is not None:
        following.append(asyncio.create_task(tokens.follow(service.check_tokens)))
    draining = asyncio.create_task(drain.wait())
    try:
        await asyncio.wait({*following, draining}, return_when=asyncio.FIRST_COMPLETED)
        for each in following:
            if each.done():
                each.result()
        await _drain(service, going, tails, server, listener.drain_grace_s)
    finally:
        for task in (draining, *following):
            task.cancel()
        await asyncio.gather(draining, *following, return_exceptions=True)
        await server.stop(0)
        archives.close()


async def _drain(
    service: ReplicationService, going: Drain, tails: Tails, server: grpc.aio.Server, grace_s: float
) -> None:
    """Tell the clients to go, and wait until they have or the grace is over."""
    deadline = time.time() + grace_s
    going.begin("draining", int(deadline * 1000))
    log.info("draining", clients=service.open_streams, grace_s=grace_s)
    for tail in tails:
        tail.notify_all()
    # Stops listening at once, so that new connections reach the processes that stay.
    stopping = asyncio.create_task(server.stop(grace_s + 1))
    await asyncio.wait({stopping}, timeout=grace_s)
    service.end_all(Draining("the server is draining: connect elsewhere"))
    await stopping


def _listen(server: grpc.aio.Server, listener: ListenerOptions) -> int:
    host = f"[{listener.host}]" if ":" in listener.host else listener.host
    address = f"{host}:{listener.port}"
    try:
        if listener.tls is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, _credentials(listener.tls)))
    except RuntimeError as error:
        raise CannotListen(
            f"can't listen on {address} (fanout.grpc.host, port): {error}"
        ) from error


def _credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    key, cert = _pem(tls.key, "key"), _pem(tls.cert, "cert")
    client_ca = _pem(tls.client_ca, "client_ca") if tls.client_ca is not None else None
    return grpc.ssl_server_credentials(
        [(key, cert)], root_certificates=client_ca, require_client_auth=client_ca is not None
    )


def _pem(path: Path, name: str) -> bytes:
    try:
        pem = path.read_bytes()
    except OSError as error:
        raise CannotListen(f"fanout.grpc.tls.{name}: {path}: {error.strerror}") from error
    if b"-----BEGIN" not in pem:
        raise CannotListen(f"fanout.grpc.tls.{name}: {path} is not a PEM file")
    return pem
