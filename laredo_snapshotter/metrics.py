"""Prometheus metrics: counters raised as things happen, the rest read at each scrape."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from laredo_archive.aws.clients import Called
from laredo_fanout.client.errors import StreamError
from laredo_fanout.client.events import Handshake
from laredo_fanout.client.stream.stream import Observer
from laredo_service.certificates import CertificateWatch
from laredo_service.http.connections import HttpCounts, families
from laredo_service.metrics import Exposition, build_info, exposed, process_memory
from laredo_snapshotter.status import TableWriterStatus, WriterState

# The metrics of tables, destinations and sinks that each scrape reads from their status.


def _unix(table: TableWriterStatus, moment: datetime | None) -> float | None:
    """Unix time of ``moment``; None if another writer has taken the archive over."""
    if moment is None or table.state is WriterState.FENCED:
        return None
    return moment.timestamp()


class _Gauge(NamedTuple):
    name: str
    help: str
    value: Callable[[TableWriterStatus], float | None]


_GAUGES = (
    _Gauge("epoch", "Epoch that the archive is in", lambda t: t.epoch),
    _Gauge(
        "buffer_depth",
        "Changed rows that aren't in the archive: buffered, frozen or spilled",
        lambda t: t.buffer_depth,
    ),
    _Gauge(
        "buffer_bytes",
        "Memory of the changes that aren't in the archive",
        lambda t: t.buffer_bytes + t.waiting_bytes,
    ),
    _Gauge(
        "buffer_spilled_bytes",
        "Disk space of the changes that aren't in the archive",
        lambda t: t.buffer_spilled_bytes,
    ),
    _Gauge(
        "churn_records",
        "Net changes since the epoch's base, and those that aren't in the archive yet",
        lambda t: t.churn_records,
    ),
    _Gauge("snapshot_age_seconds", "Age of the epoch's base", lambda t: t.snapshot_age_seconds),
    _Gauge("diff_bytes", "Bytes of the diffs since the epoch's base", lambda t: t.diff_bytes),
    _Gauge(
        "diffs_since_snapshot", "Diffs since the epoch's base", lambda t: t.diffs_since_snapshot
    ),
    _Gauge(
        "manifest_head_position", "WAL position that the archive reaches", lambda t: t.head_position
    ),
    _Gauge(
        "unverified_seconds",
        "Time that the next artifact has waited for a check of PostgreSQL's catalog",
        lambda t: 0.0 if t.unverified is None else t.unverified["seconds"],
    ),
    _Gauge(
        "last_commit_timestamp_seconds",
        "Unix time of the archive's newest artifact; absent once another writer has taken it over",
        lambda t: _unix(t, t.committed_at),
    ),
    _Gauge(
        "seen_timestamp_seconds",
        "Unix time at which the archive was last known to be complete: at a commit, or every"
        " seen_interval while nothing changes; absent once another writer has taken it over",
        lambda t: _unix(t, t.complete_at),
    ),
    _Gauge(
        "buffer_waiting_bytes",
        "Memory of the changes that are cut and wait for their commit",
        lambda t: t.waiting_bytes,
    ),
    _Gauge(
        "rebase_failing_seconds",
        "Seconds since re-bases began to fail; 0 when the last one succeeded",
        lambda t: t.rebase_failing_seconds,
    ),
    _Gauge("table_ready", "1 if the table has its base and nothing is wrong", lambda t: t.ready),
)


class TableCollector(Collector):
    """Gauges of every table's writer."""

    def __init__(self, tables: Callable[[], Iterable[TableWriterStatus]]) -> None:
        """``tables`` is read at each scrape."""
        self._tables = tables

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        tables = list(self._tables())
        for name, help_text, value_of in _GAUGES:
            gauge = GaugeMetricFamily(f"snapshotter_{name}", help_text, labels=["table"])
            for table in tables:
                if (value := value_of(table)) is not None:
                    gauge.add_metric([table.table], float(value))
            yield gauge
        conflicts = CounterMetricFamily(
            "snapshotter_manifest_cas_conflicts",
            "Manifest commits refused because another program had changed the manifest",
            labels=["table"],
        )
        for table in tables:
            conflicts.add_metric([table.table], table.cas_conflicts)
        yield conflicts
        yield from _of_destinations(tables)
        yield from _of_sinks(tables)


def _of_destinations(tables: Iterable[TableWriterStatus]) -> Iterator[Metric]:
    labels = ["table", "destination"]
    errors = CounterMetricFamily(
        "snapshotter_destination_errors",
        "Requests that a destination refused or didn't answer",
        labels=labels,
    )
    up = GaugeMetricFamily(
        "snapshotter_destination_up",
        "1 if the destination takes commits, 0 if it holds them up",
        labels=labels,
    )
    unavailable = GaugeMetricFamily(
        "snapshotter_destination_away_seconds",
        "Time that the destination has held commits up",
        labels=labels,
    )
    for table in tables:
        for destination in table.destinations:
            names = [table.table, destination.place]
            errors.add_metric(names, destination.errors)
            if destination.state != "unknown":
                is_up = destination.state == "level"
                up.add_metric(names, float(is_up))
                unavailable.add_metric(names, 0.0 if is_up else _seconds_since(destination.since))
    yield from (errors, up, unavailable)


def _of_sinks(tables: Iterable[TableWriterStatus]) -> Iterator[Metric]:
    labels = ["table", "sink"]
    backlog = GaugeMetricFamily(
        "snapshotter_event_backlog",
        "Artifacts that the sink isn't notified of yet",
        labels=labels,
    )
    failing = GaugeMetricFamily(
        "snapshotter_event_failing_seconds",
        "Time that the sink has refused notices",
        labels=labels,
    )
    missed = CounterMetricFamily(
        "snapshotter_notices_missed",
        "Artifacts that left the manifest before the sink was notified of them",
        labels=labels,
    )
    for table in tables:
        for sink in table.sinks:
            names = [table.table, sink.name]
            missed.add_metric(names, sink.missed)
            if sink.outstanding is not None:
                backlog.add_metric(names, sink.outstanding)
            failing.add_metric(names, _seconds_since(sink.since))
    yield from (backlog, failing, missed)


def _seconds_since(moment: datetime | None) -> float:
    return 0.0 if moment is None else (datetime.now(UTC) - moment).total_seconds()


class Metrics:
    """One process's metrics, in a registry of its own."""

    def __init__(
        self,
        tables: Callable[[], Iterable[TableWriterStatus]],
        http: HttpCounts,
        certificates: CertificateWatch,
    ) -> None:
        """``tables``, ``http`` and ``certificates`` are read at each scrape."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._certificates = certificates
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.artifacts_written = Counter(
            "snapshotter_artifacts_written",
            "Artifacts committed",
            ["table", "kind"],
            registry=self.registry,
        )
        self.event_errors = Counter(
            "snapshotter_event_errors",
            "Notices that a sink refused",
            ["table", "sink"],
            registry=self.registry,
        )
        self.notices_sent = Counter(
            "snapshotter_notices_sent",
            "Notices that a sink accepted",
            ["table", "sink"],
            registry=self.registry,
        )
        self.stream_errors = Counter(
            "snapshotter_stream_errors",
            "Streams that were lost or refused",
            ["table", "kind"],
            registry=self.registry,
        )
        self.restarts = Counter(
            "snapshotter_table_restarts",
            "Times that a table's writer was restarted from the archive's head",
            ["table"],
            registry=self.registry,
        )
        self.fenced = Counter(
            "snapshotter_fenced",
            "Times that another writer took the archive over from this one",
            ["table"],
            registry=self.registry,
        )
        self.table_failures = Counter(
            "snapshotter_table_failures",
            "Errors that ended a table's session, or its writer for good, by the error's name",
            ["table", "kind"],
            registry=self.registry,
        )
        self.rebases = Counter(
            "snapshotter_rebases",
            "Re-bases that ended: done, or failed and tried again",
            ["table", "outcome"],
            registry=self.registry,
        )
        self.objects_deleted = Counter(
            "snapshotter_objects_deleted",
            "Deleted objects, which no manifest needed any more",
            ["table", "destination"],
            registry=self.registry,
        )
        self.collections = Counter(
            "snapshotter_collections",
            "Runs of the garbage collector",
            ["table", "destination", "outcome"],
            registry=self.registry,
        )
        self.merges = Counter(
            "snapshotter_diff_merges",
            "Merges of diffs into a larger one: done, or failed and tried again",
            ["table", "outcome"],
            registry=self.registry,
        )
        self.objects_restored = Counter(
            "snapshotter_objects_restored",
            "Objects that were missing or damaged, restored from another destination",
            ["table", "destination"],
            registry=self.registry,
        )
        self.objects_lost = Gauge(
            "snapshotter_objects_lost",
            "Objects that were missing or damaged at the writer's start, and no destination has"
            " whole",
            ["table", "destination"],
            registry=self.registry,
        )
        self.aws_requests = Counter(
            "snapshotter_aws_requests",
            "Requests to AWS services, by the answer's HTTP status",
            ["service", "operation", "status"],
            registry=self.registry,
        )
        self._of_destinations = (
            self.objects_deleted,
            self.collections,
            self.objects_restored,
            self.objects_lost,
        )
        self._of_sinks = (self.event_errors, self.notices_sent)
        self.registry.register(TableCollector(tables))
        self.registry.register(_ProgramCollector(http, certificates))

    def called(self, called: Called) -> None:
        """Count a request to an AWS service, by its answer's status (``none``: no answer)."""
        status = "none" if called.status is None else str(called.status)
        self.aws_requests.labels(called.service, called.operation, status).inc()

    def forget(self, table: str) -> None:
        """Remove the metrics of a table that isn't written any more."""
        for counter in (
            *self._of_destinations,
            *self._of_sinks,
            self.artifacts_written,
            self.stream_errors,
            self.restarts,
            self.fenced,
            self.table_failures,
            self.rebases,
            self.merges,
        ):
            counter.remove_by_labels({"table": table})

    def forget_outputs(self, table: str, destinations: Iterable[str], sinks: Iterable[str]) -> None:
        """Remove the metrics of destinations, by location, and sinks that a table has no more."""
        for location in destinations:
            for counter in self._of_destinations:
                counter.remove_by_labels({"table": table, "destination": location})
        for sink in sinks:
            for counter in self._of_sinks:
                counter.remove_by_labels({"table": table, "sink": sink})

    async def answer(self, accept: str) -> Exposition:
        """Answer to a scrape, in the format that the request's Accept header asks for."""
        await asyncio.to_thread(self._certificates.read)
        return exposed(self.registry, accept)


class TableCounters(Observer):
    """One table's counters, and the state of its connection. Safe for use by several threads."""

    def __init__(self, metrics: Metrics, table: str) -> None:
        self.disconnected_because: str | None = "no answer from the server yet"
        """None while there is a stream."""
        self._metrics = metrics
        self._table = table
        for kind in ("snapshot", "diff"):
            metrics.artifacts_written.labels(table, kind)
        metrics.restarts.labels(table)
        metrics.fenced.labels(table)
        for outcome in ("done", "failed"):
            metrics.rebases.labels(table, outcome)
            metrics.merges.labels(table, outcome)

    def artifact(self, kind: str) -> None:
        """Count a committed artifact."""
        self._metrics.artifacts_written.labels(self._table, kind).inc()

    def sink(self, name: str) -> None:
        """Begin the counters of a sink at 0."""
        self._metrics.notices_sent.labels(self._table, name)
        self._metrics.event_errors.labels(self._table, name)

    def notice_sent(self, sink: str) -> None:
        """Count a notice that ``sink`` accepted."""
        self._metrics.notices_sent.labels(self._table, sink).inc()

    def notice_refused(self, sink: str) -> None:
        """Count a notice that ``sink`` refused or didn't confirm."""
        self._metrics.event_errors.labels(self._table, sink).inc()

    def destination(self, location: str) -> None:
        """Begin the counters of the destination at ``location`` at 0."""
        self._metrics.objects_restored.labels(self._table, location)
        self._metrics.objects_deleted.labels(self._table, location)
        for outcome in ("done", "failed"):
            self._metrics.collections.labels(self._table, location, outcome)

    def collected(self, location: str, outcome: str) -> None:
        """Count a run of the garbage collector that ended, done or failed."""
        self._metrics.collections.labels(self._table, location, outcome).inc()

    def diffs_merged(self, outcome: str) -> None:
        """Count a merge of diffs that ended, done or failed."""
        self._metrics.merges.labels(self._table, outcome).inc()

    def object_deleted(self, location: str) -> None:
        """Count a deleted object."""
        self._metrics.objects_deleted.labels(self._table, location).inc()

    def objects_restored(self, location: str, count: int) -> None:
        """Count objects that were missing or damaged, and are restored."""
        self._metrics.objects_restored.labels(self._table, location).inc(count)

    def objects_lost(self, location: str, count: int) -> None:
        """Set the number of objects that no destination has whole, as the last check found."""
        self._metrics.objects_lost.labels(self._table, location).set(count)

    def restarted(self) -> None:
        """Count a restart of the table's writer."""
        self._metrics.restarts.labels(self._table).inc()

    def fenced(self) -> None:
        """Count that another writer took the archive over."""
        self._metrics.fenced.labels(self._table).inc()

    def failed(self, failure: Exception) -> None:
        """Count an error that ended the table's session, or its writer for good."""
        self._metrics.table_failures.labels(self._table, type(failure).__name__).inc()

    def rebased(self, outcome: str) -> None:
        """Count a re-base that ended, done or failed."""
        self._metrics.rebases.labels(self._table, outcome).inc()

    def connected(self, handshake: Handshake) -> None:
        """Clear the reason of the last disconnection: a stream began."""
        del handshake
        self.disconnected_because = None

    def disconnected(self, error: StreamError, delay: float) -> None:
        """Count a stream that ended, or an attempt that failed."""
        del delay
        self.disconnected_because = str(error)
        self._metrics.stream_errors.labels(self._table, type(error).__name__).inc()


class _ProgramCollector(Collector):
    def __init__(self, counts: HttpCounts, certificates: CertificateWatch) -> None:
        self._counts = counts
        self._certificates = certificates

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield build_info("snapshotter")
        yield process_memory("snapshotter", ())
        yield from families(self._counts, "snapshotter")
        yield from self._certificates.families("snapshotter")
