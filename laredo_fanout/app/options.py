"""Maps the configuration to the options of the source and of the serving processes."""

from __future__ import annotations

from laredo_fanout import source_options as source
from laredo_fanout.catchup.options import CatchupOptions, Mode
from laredo_fanout.config import Config, Table
from laredo_fanout.serving import options as serving


def source_options(config: Config) -> source.SourceOptions:
    """The options of the source."""
    said = config.source
    return source.SourceOptions(
        connection=said.connection.get_secret_value(),
        slot_name=said.slot_name,
        slot_name_given="slot_name" in said.model_fields_set,
        publication=source.PublicationOptions(
            said.publication.name, said.publication.create, said.publication.append_only_name or ""
        ),
        copy=source.CopyOptions(
            workers=said.copying.workers,
            max_rows_per_second=said.copying.max_rows_per_second,
            max_memory=said.copying.max_memory,
            max_connections=said.copying.max_connections,
        ),
        heartbeat_interval=said.heartbeat_interval,
        receive_timeout=said.receive_timeout,
        on_slot_lost=source.OnSlotLost(said.on_slot_lost),
    )


def catchup_options(config: Config) -> CatchupOptions | None:
    """The options of fall-behind mode; None: it is off."""
    said = config.source.catchup
    if said.mode == "off":
        return None
    return CatchupOptions(
        spool_directory=said.spool_dir or config.state.path / "catchup",
        mode=Mode(said.mode),
        threshold_bytes=said.threshold_bytes,
        check_interval=said.check_interval,
        max_segments=said.max_segments,
        min_segment_bytes=said.min_segment_bytes,
        reserve=said.reserve_slots,
        spool_max_bytes=said.spool_max_bytes,
    )


def source_tables(config: Config) -> list[source.TableOptions]:
    """The tables that the source replicates."""
    return [
        source.TableOptions(table.namespace, table.table, table.append_only)
        for table in config.tables
    ]


def archive_options(table: Table) -> serving.ArchiveOptions | None:
    """The location of the table's archive, if it has one."""
    archive = table.target.archive
    return None if archive is None else archive.options(table.table)


def serving_options(
    config: Config, port: int, connect_port: int | None = None
) -> serving.ServingOptions:
    """The options of the serving processes; the ports are those that are held for them."""
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
            connect=None
            if connect_port is None
            else serving.ConnectOptions(config.connect_host, connect_port),
        ),
        tables={
            table.name: serving.TableOptions(
                buffer_max_size=table.target.client_buffer.max_size,
                buffer_policy=serving.BufferPolicy(table.target.client_buffer.policy),
                heartbeat_interval_s=table.target.heartbeat_interval,
                snapshot_path=config.snapshot_path(table),
                archive=archive_options(table),
            )
            for table in config.tables
        },
    )
