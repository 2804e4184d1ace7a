"""Options of sources and serving processes, made from the configuration."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from psycopg.conninfo import make_conninfo

from laredo_fanout import source_options as source
from laredo_fanout.catchup.plan import CatchupMode, CatchupOptions
from laredo_fanout.client.stream.endpoint import Tls
from laredo_fanout.config import Config, ReplicatedTableConfig, StandbyConfig
from laredo_fanout.postgres.connections import SourceError
from laredo_fanout.relay.path import RelayOptions
from laredo_fanout.serving import options as serving
from laredo_fanout.serving.call import peer_token
from laredo_fanout.slot.reports import StandbyOptions
from laredo_fanout.source_config import Source, Upstream
from laredo_service.certificates import Certificate


def relay_options(configured: Upstream, source_name: str) -> RelayOptions:
    """The options of a source that is another laredo-fanout, which has this name."""
    client_id = configured.client_id or f"laredo-relay:{socket.gethostname()}"
    return _followed(configured, configured.server, client_id, source_name)


def peer_options(config: Config) -> list[RelayOptions]:
    """The options for following each server of the ``standby`` block."""
    configured = config.standby
    assert configured is not None
    client_id = f"laredo-standby:{socket.gethostname()}"
    return [
        replace(_followed(configured, peer, client_id, config.source_name), standby=True)
        for peer in configured.peers
    ]


def _followed(
    configured: Upstream | StandbyConfig, server: str, client_id: str, source_name: str
) -> RelayOptions:
    tls, token = configured.tls, configured.token
    return RelayOptions(
        server=server,
        client_id=client_id,
        tls=None if tls is None else Tls(tls.ca, tls.cert, tls.key, tls.server_name),
        token=None if token is None else token.get_secret_value(),
        token_file=configured.token_file,
        source_name=source_name,
    )


def standby_options(config: Config) -> StandbyOptions:
    """The rules of confirmation and takeover."""
    configured = config.standby
    assert configured is not None
    return StandbyOptions(
        synchronous=configured.synchronous,
        patience=configured.patience,
        waits=configured.alone == "wait",
        takeover_after=configured.takeover_after,
    )


def source_options(config: Config) -> source.SourceOptions:
    """The options of the source, which is PostgreSQL."""
    configured = config.source
    assert configured is not None, "it is another laredo-fanout"
    return source.SourceOptions(
        connection=_connection(configured),
        slot_name=configured.slot_name,
        slot_name_given="slot_name" in configured.model_fields_set,
        publication=source.PublicationOptions(
            configured.publication.name,
            configured.publication.create,
            configured.publication.append_only_name or "",
        ),
        copy=source.CopyOptions(
            workers=configured.copying.workers,
            max_rows_per_second=configured.copying.max_rows_per_second,
            max_memory=configured.copying.max_memory,
            max_connections=configured.copying.max_connections,
        ),
        heartbeat_interval=configured.heartbeat_interval,
        receive_timeout=configured.receive_timeout,
        on_slot_lost=source.OnSlotLost(configured.on_slot_lost),
    )


def _connection(configured: Source) -> str:
    connection = configured.connection.get_secret_value()
    if configured.password is None:
        return connection
    return make_conninfo(connection, password=configured.password.get_secret_value())


def catchup_options(config: Config) -> CatchupOptions | None:
    """The options of fall-behind mode; None: it is off."""
    if config.source is None or config.standby or config.source.catchup.mode == "off":
        return None
    configured = config.source.catchup
    return CatchupOptions(
        spool_directory=configured.spool_dir or config.state.path / "catchup",
        mode=CatchupMode(configured.mode),
        threshold_bytes=configured.threshold_bytes,
        check_interval=configured.check_interval,
        max_segments=configured.max_segments,
        min_segment_bytes=configured.min_segment_bytes,
        reserve=configured.reserve_slots,
        spool_max_bytes=configured.spool_max_bytes,
    )


def source_tables(config: Config) -> list[source.SourceTableOptions]:
    """The tables that the source replicates."""
    return [
        source.SourceTableOptions(table.namespace, table.table, table.append_only, table.by_pattern)
        for table in config.tables
    ]


def archive_options(table: ReplicatedTableConfig) -> serving.ArchiveOptions | None:
    """The location of the table's archive, if it has one."""
    archive = table.target.archive
    return None if archive is None else archive.options(table.table)


def serving_options(
    config: Config, port: int, connect_port: int | None = None
) -> serving.ServingOptions:
    """The options of the serving processes, with the ports that are reserved for them."""
    grpc = config.fanout.grpc
    tls = None
    if grpc.tls is not None:
        tls = serving.TlsFiles(grpc.tls.cert, grpc.tls.key, grpc.tls.client_ca)
    return serving.ServingOptions(
        listener=serving.ListenerOptions(
            host=grpc.listening_host,
            port=port,
            tls=tls,
            tokens_file=grpc.tokens_file,
            drain_grace_s=config.fanout.drain_grace,
            spool_path=config.state.path / "spool",
            spool_max_bytes=config.fanout.spool_max_size // grpc.workers,
            peer_token=_peer_token(config),
            connect=None
            if connect_port is None
            else serving.ConnectOptions(config.connect_host, connect_port),
        ),
        tables={
            table.name: serving.ServingTableOptions(
                buffer_max_size=table.target.client_buffer.max_size,
                buffer_policy=serving.BufferPolicy(table.target.client_buffer.policy),
                heartbeat_interval_s=table.target.heartbeat_interval,
                snapshot_path=config.snapshot_path(table),
                archive=archive_options(table),
            )
            for table in config.tables
        },
    )


def _peer_token(config: Config) -> str | None:
    """The token of servers that share the slot; None: there is none, or it can't be read."""
    if config.standby is None:
        return None
    try:
        token = peer_options(config)[0].endpoint().token
    except SourceError:
        return None  # the connections to peers report it
    return None if token is None else peer_token(token)


def certificates(config: Config) -> Iterator[Certificate]:
    """The certificates that the server presents, and those of the CAs that it trusts."""
    tls = config.fanout.grpc.tls
    if tls is not None:
        yield Certificate("fanout.grpc.tls.cert", tls.cert)
        yield from _authority("fanout.grpc.tls.client_ca", tls.client_ca)
    for key, peer in (
        (f"sources.{config.source_name}", config.upstream),
        ("standby", config.standby),
    ):
        if peer is not None and peer.tls is not None:
            if peer.tls.cert is not None:
                yield Certificate(f"{key}.tls.cert", peer.tls.cert)
            yield from _authority(f"{key}.tls.ca", peer.tls.ca)


def _authority(name: str, path: Path | None) -> Iterator[Certificate]:
    if path is not None:
        yield Certificate(name, path, any_will_do=True)
