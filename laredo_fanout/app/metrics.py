"""Metrics of the server: its source, tables, clients, processes and store."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from laredo_fanout.app.archive_watch import ArchiveCheck
from laredo_fanout.batch.status import IngestStatus
from laredo_fanout.catchup.plan import CatchupStatus
from laredo_fanout.relay.path import RelayStatus
from laredo_fanout.serving.journal import transactions_of
from laredo_fanout.serving.ports import ClientState
from laredo_fanout.serving.shared import SentCounts
from laredo_fanout.slot.slot import Slot
from laredo_fanout.standby import StandbyStatus
from laredo_fanout.store.errors import StoreError
from laredo_fanout.store.reader import StoreReader
from laredo_fanout.store.table import TableRecord
from laredo_fanout.store.writer import Store
from laredo_service.certificates import CertificateWatch
from laredo_service.http.connections import HttpCounts
from laredo_service.http.connections import families as http_families
from laredo_service.metrics import Exposition, build_info, exposed, process_memory

# Lag of each table's slowest client, in transactions: the unit of its limit.

_READ_BYTES = 256 << 10
_TURN_S = 0.0005
"""A pause between two reads, in which the ingest's thread gets the interpreter."""
_PATIENCE_S = 1.0


class BufferFigures(NamedTuple):
    """Lag of a table's slowest client, and the limit of that lag, in transactions."""

    depth: int
    limit: int


def measured(
    reader: StoreReader,
    tables: Mapping[str, TableRecord],
    clients: Mapping[str, Sequence[ClientState]],
    limits: Mapping[str, int],
) -> dict[str, BufferFigures]:
    """The buffers of the tables that have a limit. It reads the journal: not for an event loop.

    Sequences number changes, not transactions. So the transactions that a client lacks are counted,
    until they are more than the limit, or a second is over.
    """
    deadline = time.monotonic() + _PATIENCE_S
    found = {}
    for name, limit in limits.items():
        late = [client.sequence for client in clients.get(name, ()) if client.depth]
        depth = 0
        if late and name in tables:
            depth = _behind(reader, tables[name], min(late), limit, deadline)
        found[name] = BufferFigures(depth, limit)
    return found


def _behind(
    reader: StoreReader, table: TableRecord, after: int, limit: int, deadline: float
) -> int:
    transactions = 0
    while transactions <= limit and time.monotonic() < deadline:
        try:
            records = reader.journal(table.id, after, _READ_BYTES, with_old=False)
        except StoreError:
            # Pruned, or the table is copied again: the client is about to get a snapshot.
            break
        records = [record for record in records if record.first_sequence <= table.sequence]
        if not records:
            break
        transactions += sum(map(transactions_of, records))
        after = records[-1].last_sequence
        time.sleep(_TURN_S)
    return transactions


# The store's share of its disk.

_BLOCK = 512
"""Unit of st_blocks, whatever the file system's own blocks are."""


class StoreSpace(NamedTuple):
    """Sizes in bytes."""

    #: Disk space of the data file, with the part that is reserved ahead.
    allocated: int
    #: Unused pages of the data file, and the room up to max_size.
    free: int
    #: state.max_size.
    most: int
    #: Free space of the disk for the server's user.
    disk_free: int


def measured_space(store: Store, most: int) -> StoreSpace | None:
    """The space of the store, whose max_size is ``most``; None: its data file is gone."""
    try:
        allocated = (store.path / "data.mdb").stat().st_blocks * _BLOCK
        disk = os.statvfs(store.path)
    except FileNotFoundError:
        return None
    return StoreSpace(allocated, store.free_bytes, most, disk.f_bavail * disk.f_frsize)


@dataclass
class Figures:
    """The figures that the metrics are made of; mappings are by table."""

    source_name: str
    source: IngestStatus
    tables: Mapping[str, TableRecord]
    clients: dict[str, list[ClientState]]
    buffers: Mapping[str, BufferFigures]
    max_clients: int
    disconnects: Mapping[str, int]
    snapshots: Mapping[str, int]
    store: StoreSpace | None
    pruned: int
    serving_restarts: int
    serving_spawn_failures: int
    #: By kind of process.
    hangs: Mapping[str, int]
    ingest_restarts: int
    replays: Mapping[tuple[str, str], int]
    archives: Mapping[str, ArchiveCheck]
    catchup: CatchupStatus | None
    #: By their names, without the main one.
    pids: Mapping[str, int]
    #: By serving processes' names.
    sent: Mapping[str, SentCounts]
    http: HttpCounts
    certificates: CertificateWatch
    scrub_age: float | None = None
    relay: RelayStatus | None = None
    standby: StandbyStatus | None = None


def exposition(figures: Figures, accept: str) -> Exposition:
    """The metrics of these figures, and of the main process (memory, CPU, descriptors).

    ``accept`` is the request's Accept header.
    """
    registry = CollectorRegistry()
    registry.register(_FigureCollector(figures))
    ProcessCollector(registry=registry)
    return exposed(registry, accept)


class _FigureCollector(Collector):
    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        yield from _source(self._figures)
        yield from _catchup(self._figures)
        yield from _relay(self._figures)
        yield from _standby(self._figures)
        yield from _tables(self._figures)
        yield from _fanout(self._figures)
        yield from _store(self._figures)
        yield from _archives(self._figures)
        yield process_memory("laredo", self._figures.pids.items())
        yield from _sent(self._figures.sent)
        yield build_info("laredo")
        yield from http_families(self._figures.http, "laredo")
        yield from self._figures.certificates.families("laredo")


Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily
Labels = TypeVar("Labels", bound=str | tuple[str, ...])


def _gauge(name: str, what: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, what, labels=labels)


def _counter(name: str, what: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, what, labels=labels)


def _filled(family: Family, values: Mapping[Labels, float]) -> Family:
    """The metric with these values, each by its label or its labels."""
    for labels, value in values.items():
        family.add_metric((labels,) if isinstance(labels, str) else labels, value)
    return family


def _of_source(
    make: Callable[..., Family],
    source: str,
    *values: tuple[str, str, float | None],
) -> Iterator[Metric]:
    """One metric for each name, text and value that is known."""
    for name, text, value in values:
        if value is not None:
            yield _filled(make(f"laredo_{name}", text, "source"), {source: value})


def _source(figures: Figures) -> Iterator[Metric]:
    source, name = figures.source, figures.source_name
    late, ended = source.lag_seconds, source.senders_ended
    safe = source.slot and source.slot.safe_wal_size
    yield from _of_source(
        _gauge,
        name,
        ("source_connected", "1 while the slot's stream is read", float(source.connected)),
        ("position_bytes", "WAL position up to which everything is durable here", source.position),
        (
            "source_lag_bytes",
            "Bytes of WAL that are written and not yet durable here",
            source.known_lag_bytes,
        ),
        ("source_lag_seconds", "Age of the newest durable transaction; 0 when caught up", late),
        ("slot_safe_wal_bytes", "Bytes of WAL until the slot is in danger", safe),
    )
    yield from _of_source(
        _counter,
        name,
        ("source_recopies", "Tables copied again", source.recopies),
        ("source_reconnects", "Times the stream was disconnected", source.reconnects),
        ("source_restarts", "Times the ingest failed and was restarted", figures.ingest_restarts),
        ("source_slot_losses", "Times the slot had to be created again", source.slot_losses),
        ("source_stale_senders_ended", "Walsenders of lost connections ended", ended),
        (
            "source_strange_messages",
            "Unexpected messages in the WAL with our prefix: forged, or of an earlier"
            " connection of this server",
            source.strange_messages,
        ),
    )
    kinds = "source", "kind"
    text = "Times the stream ended at a transaction that can't be decoded, or broke the protocol"
    faults = _counter("laredo_source_stream_faults", text, *kinds)
    fault = _gauge(
        "laredo_source_stream_fault",
        "1 until the stream has passed the fault",
        *kinds,
    )
    current = source.stream_fault
    for kind, number in source.stream_faults.items():
        faults.add_metric([name, kind], number)
        fault.add_metric([name, kind], float(current is not None and current.kind == kind))
    yield from (faults, fault)
    yield from _slot(source, name)
    changes = _counter("laredo_changes", "Changes taken from the stream", "source", "action")
    yield _filled(changes, {(name, action): number for action, number in source.changes.items()})


def _catchup(figures: Figures) -> Iterator[Metric]:
    """Fall-behind mode; nothing where it is off."""
    catchup, name = figures.catchup, figures.source_name
    if catchup is None:
        return
    released = catchup.release_position
    yield from _of_source(
        _gauge,
        name,
        ("catchup_active", "1 while a backlog is split", float(released is not None)),
        (
            "catchup_lag_bytes",
            "Bytes of WAL that are written and not yet in the store",
            catchup.lag_bytes,
        ),
        ("catchup_threshold_bytes", "catchup.threshold_bytes", catchup.threshold_bytes),
        (
            "catchup_release_position",
            "WAL position up to which changes are released and durable",
            released or 0,
        ),
        ("catchup_spool_bytes", "Bytes decoded and not yet released", catchup.spool_bytes),
    )
    segments = _gauge("laredo_catchup_segments", "Segments, by state", "source", "state")
    yield _filled(segments, Counter((name, segment.state) for segment in catchup.segments))
    yield from _of_source(
        _counter,
        name,
        ("catchup_plans", "Backlogs that were split", catchup.plans),
        (
            "catchup_given_up",
            "Split backlogs that were read through the one slot after all",
            catchup.given_up,
        ),
        ("catchup_segment_restarts", "Segments' processes that were restarted", catchup.restarts),
    )


def _relay(figures: Figures) -> Iterator[Metric]:
    """Nothing where the source is PostgreSQL."""
    relay, name = figures.relay, figures.source_name
    if relay is None:
        return
    hops = _gauge("laredo_relay_hops", "Servers between this one and PostgreSQL", "source")
    yield _filled(hops, {name: max(0, len(relay.path) - 1)})
    delays = _gauge(
        "laredo_relay_delay_seconds",
        "Time from the newest transaction's commit to its arrival at a server of the path; hop"
        " 0 is this one",
        "source",
        "hop",
    )
    for number, hop in enumerate(relay.path):
        if hop.delay_s is not None:
            delays.add_metric([name, str(number)], hop.delay_s)
    yield delays
    goaways = _counter(
        "laredo_relay_goaways", "Streams that the upstream ended as it was shutting down", "source"
    )
    yield _filled(goaways, {name: relay.goaways})
    snapshots = _counter("laredo_relay_snapshots", "Snapshots that the upstream sent", "table")
    yield _filled(snapshots, relay.snapshots)


_WAL_STATUSES = ("reserved", "extended", "unreserved", "lost")
_KINDS = (
    "lost",
    "dropped",
    "unreserved",
    "safe_wal_size",
    "extended",
    "idle",
    "old_transaction",
    "xmin",
)


def _slot(source: IngestStatus, name: str) -> Iterator[Metric]:
    """Metrics of the slot as PostgreSQL reports it; none while PostgreSQL can't be asked."""
    if source.slot_seen_at is not None:
        seen = _gauge(
            "laredo_slot_seen_timestamp_seconds",
            "Unix time at which PostgreSQL was last asked about the slot",
            "source",
        )
        yield _filled(seen, {name: source.slot_seen_at})
    if source.slot is not None:
        yield from _kept(source.slot, name)
    if source.slot is not None or source.slot_warnings:
        kinds = {warning.kind for warning in source.slot_warnings}
        warned = _gauge(
            "laredo_slot_warning", "1 while the slot is in this danger", "source", "kind"
        )
        yield _filled(warned, {(name, kind): float(kind in kinds) for kind in _KINDS})


def _kept(slot: Slot, name: str) -> Iterator[Metric]:
    yield from _of_source(
        _gauge,
        name,
        ("slot_retained_wal_bytes", "Bytes of WAL that the slot keeps", slot.retained),
        (
            "slot_unconfirmed_wal_bytes",
            "Bytes of WAL that isn't confirmed yet",
            slot.unconfirmed,
        ),
        ("slot_xmin_age", "Age of the slot's oldest xmin, in transactions", slot.xmin_age),
        (
            "slot_oldest_transaction_seconds",
            "Age of the oldest open transaction, whose WAL the slot keeps; 0 when none is open",
            slot.oldest.age_s if slot.oldest is not None else 0,
        ),
    )
    status = _gauge("laredo_slot_wal_status", "1 for the slot's wal_status", "source", "status")
    yield _filled(status, {(name, s): float(slot.wal_status == s) for s in _WAL_STATUSES})


def _standby(figures: Figures) -> Iterator[Metric]:
    """Nothing where the slot isn't shared."""
    standby, name = figures.standby, figures.source_name
    if standby is None:
        return
    yield from _of_source(
        _gauge,
        name,
        (
            "standby_holder",
            "1 while this server holds the slot, 0 while it is a standby",
            float(standby.holder),
        ),
        ("standby_term", "Number of the slot's last takeover that this server knows", standby.term),
        (
            "standby_complete",
            "Of the holder: standbys that have every table, and reported within 5 s",
            standby.complete,
        ),
        (
            "standby_missing",
            "Of the holder: standbys that standby.synchronous asks for and that aren't complete",
            standby.missing,
        ),
    )
    yield from _of_source(
        _counter,
        name,
        ("standby_takeovers", "Times this server took over the slot", standby.takeovers),
    )


def _tables(figures: Figures) -> Iterator[Metric]:
    copied = _counter("laredo_copy_rows", "Rows read by copies", "table")
    yield _filled(copied, {t: each.copied_rows for t, each in figures.source.tables.items()})
    again = _gauge(
        "laredo_table_copied_again_timestamp_seconds",
        "Unix time at which another copy of a table that clients saw was last scheduled without a"
        " request; none before the first since the start",
        "table",
    )
    yield _filled(again, figures.source.copied_again_at)
    yield from _copies(figures)
    rows = _gauge("laredo_table_rows", "Rows of the table", "table")
    live = _gauge("laredo_table_live", "1 if clients are served the table", "table")
    entries = _gauge("laredo_fanout_journal_entries", "Entries of the journal", "table")
    age = _gauge(
        "laredo_fanout_journal_oldest_age_seconds", "Age of the journal's oldest entry", "table"
    )
    repairs = _gauge(
        "laredo_repairs_active",
        "1 while rows that moved with a partition wait for their repair",
        "table",
    )
    former = _gauge("laredo_putting_right_active", "Former name of laredo_repairs_active", "table")
    for table, record in figures.tables.items():
        rows.add_metric([table], record.rows)
        live.add_metric([table], float(record.shown))
        for each in (repairs, former):
            each.add_metric([table], float(record.suspect_range is not None))
        entries.add_metric([table], record.entries)
        if record.entries:
            age.add_metric([table], max(0.0, time.time() - record.oldest_time_us / 1e6))
    yield from (rows, live, entries, age, repairs, former)
    snapshots = _counter("laredo_fanout_snapshots", "Periodic snapshots written", "table")
    yield _filled(snapshots, figures.snapshots)


def _copies(figures: Figures) -> Iterator[Metric]:
    """The progress of copies; a table that isn't copied has none."""
    source, name = figures.source, figures.source_name
    done = _gauge("laredo_copy_progress_ratio", "Part of a copy that is done, 0 to 1", "table")
    rate = _gauge("laredo_copy_rows_per_second", "Rows read per second by a copy", "table")
    left = _gauge("laredo_copy_seconds_left", "Estimated seconds until a copy has ended", "table")
    under_way = _gauge("laredo_recopy_active", "1 while a re-copy is under way", "table")
    differing = _counter("laredo_recopy_differing_rows", "Rows that re-copies repaired", "table")
    repairs = _counter(
        "laredo_repairs", "Repairs of rows that partitions had moved without a change", "table"
    )
    former = _counter("laredo_put_right", "Former name of laredo_repairs_total", "table")
    for table, table_status in source.tables.items():
        for each in (repairs, former):
            each.add_metric([table], table_status.repaired)
        under_way.add_metric([table], float(table_status.recopying))
        differing.add_metric([table], table_status.recopied_rows)
        if table_status.copy is not None:
            done.add_metric([table], table_status.copy.fraction)
            rate.add_metric([table], table_status.copy.rows_per_second)
            if table_status.copy.seconds_left is not None:
                left.add_metric([table], table_status.copy.seconds_left)
    ended = _counter("laredo_recopies", "Re-copies that ended, by outcome", "table", "outcome")
    yield from (done, rate, left, under_way, differing, repairs, former)
    yield _filled(ended, source.asked_recopies)
    yield from _of_source(
        _gauge,
        name,
        ("copy_connections", "Connections that copy rows", source.copy_connections),
        (
            "copy_bytes_in_flight",
            "Bytes of copied rows that are read and not yet written",
            source.copy_bytes,
        ),
    )


def _fanout(figures: Figures) -> Iterator[Metric]:
    connected = _gauge("laredo_fanout_connected_clients", "Clients, over all processes", "table")
    yield _filled(connected, {table: len(each) for table, each in figures.clients.items()})
    depth = _gauge(
        "laredo_fanout_client_buffer_depth",
        "Transactions that the slowest client lags by, counted up to the limit",
        "table",
    )
    yield _filled(depth, {table: buffer.depth for table, buffer in figures.buffers.items()})
    limit = _gauge(
        "laredo_fanout_client_buffer_limit",
        "client_buffer.max_size: most transactions that a live client may lag by",
        "table",
    )
    yield _filled(limit, {table: buffer.limit for table, buffer in figures.buffers.items()})
    most = _gauge("laredo_fanout_max_clients", "fanout.grpc.max_clients: most clients at once")
    yield _filled(most, {(): figures.max_clients})
    left = _counter("laredo_fanout_disconnects", "Clients that left, by reason", "reason")
    yield _filled(left, figures.disconnects)
    restarts = _counter(
        "laredo_fanout_serving_restarts",
        "Times that a serving process ended, or couldn't be started, and was due again",
    )
    yield _filled(restarts, {(): figures.serving_restarts})
    unstarted = _counter(
        "laredo_fanout_serving_spawn_failures", "Serving processes that couldn't be started"
    )
    yield _filled(unstarted, {(): figures.serving_spawn_failures})
    hangs = _counter(
        "laredo_process_hangs", "Processes that were killed because they hung, by kind", "kind"
    )
    yield _filled(hangs, figures.hangs)


def _sent(sent: Mapping[str, SentCounts]) -> Iterator[Metric]:
    """Bytes and messages sent to clients; a restarted process goes on with its counts."""
    size = _counter(
        "laredo_fanout_sent_bytes",
        "Bytes sent to clients, by serving process: their streams' messages, before TLS",
        "process",
    )
    yield _filled(size, {process: counts.bytes for process, counts in sent.items()})
    messages = _counter(
        "laredo_fanout_sent_messages",
        "Messages sent to clients, by serving process; one may contain many rows or changes",
        "process",
    )
    yield _filled(messages, {process: counts.messages for process, counts in sent.items()})


def _archives(figures: Figures) -> Iterator[Metric]:
    replays = _counter(
        "laredo_fanout_archive_replays",
        "Clients whose position the journal no longer has, for tables with an archive, by outcome",
        "table",
        "outcome",
    )
    yield _filled(replays, figures.replays)
    checks = figures.archives.items()
    readable = _gauge("laredo_fanout_archive_readable", "1 if the archive can be read", "table")
    yield _filled(readable, {table: float(check.problem is None) for table, check in checks})
    covers = _gauge(
        "laredo_fanout_archive_covers_journal",
        "1 if the archive's diffs lead to the journal",
        "table",
    )
    yield _filled(covers, {table: float(check.covers_journal) for table, check in checks})


def _store(figures: Figures) -> Iterator[Metric]:
    if figures.store is not None:
        yield from _space(figures.store)
    pruned = _counter("laredo_fanout_journal_pruned", "Entries pruned from journals")
    yield _filled(pruned, {(): figures.pruned})
    damages = _counter("laredo_store_damage", "Times damage on disk was found", "table")
    yield _filled(damages, {t: each.damages for t, each in figures.source.tables.items()})
    if figures.scrub_age is not None:
        age = _gauge(
            "laredo_store_scrub_age_seconds",
            "Time since the last scrub that found the whole store undamaged, or since the start",
        )
        yield _filled(age, {(): figures.scrub_age})


def _space(store: StoreSpace) -> Iterator[Metric]:
    for what, text, value in (
        ("bytes", "Former name of laredo_store_allocated_bytes", store.allocated),
        (
            "allocated_bytes",
            "Disk space of the store's data file, with the space that is reserved ahead",
            store.allocated,
        ),
        (
            "free_bytes",
            "Free space: unused pages of the data file, and the rest up to max_size",
            store.free,
        ),
        ("max_bytes", "state.max_size: largest size of the store", store.most),
        ("disk_free_bytes", "Free space on the disk of the store", store.disk_free),
    ):
        yield _filled(_gauge(f"laredo_store_{what}", text), {(): value})
