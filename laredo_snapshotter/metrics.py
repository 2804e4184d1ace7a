"""Prometheus metrics: counters raised as things happen, the rest read at each scrape."""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
)
from prometheus_client.core import Metric
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
from laredo_snapshotter.status import TableWriterStatus
from laredo_snapshotter.table_metrics import TableCollector


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
        self.registry.register(TableCollector(tables))
        self.registry.register(_ProgramCollector(http, certificates))

    def called(self, called: Called) -> None:
        """A request to an AWS service was answered, or wasn't."""
        status = "none" if called.status is None else str(called.status)
        self.aws_requests.labels(called.service, called.operation, status).inc()

    def forget(self, table: str) -> None:
        """A table isn't written any more."""
        for counter in (
            self.artifacts_written,
            self.event_errors,
            self.notices_sent,
            self.stream_errors,
            self.restarts,
            self.fenced,
            self.table_failures,
            self.rebases,
            self.merges,
            self.objects_deleted,
            self.collections,
            self.objects_restored,
            self.objects_lost,
        ):
            counter.remove_by_labels({"table": table})

    async def answer(self, accept: str) -> Exposition:
        """Answer to a scrape, in the format that the request's Accept header asks for."""
        await asyncio.to_thread(self._certificates.read)
        return exposed(self.registry, accept)


class TableCounters(Observer):
    """One table's counters, and the state of its connection."""

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
        """One artifact was committed."""
        self._metrics.artifacts_written.labels(self._table, kind).inc()

    def sink(self, name: str) -> None:
        """There is a sink of this name; its counters begin at 0."""
        self._metrics.notices_sent.labels(self._table, name)
        self._metrics.event_errors.labels(self._table, name)

    def notice_sent(self, sink: str) -> None:
        """``sink`` took a notice."""
        self._metrics.notices_sent.labels(self._table, sink).inc()

    def notice_refused(self, sink: str) -> None:
        """``sink`` didn't take one, or didn't confirm that."""
        self._metrics.event_errors.labels(self._table, sink).inc()

    def destination(self, location: str) -> None:
        """There is a destination at ``location``; its counters begin at 0."""
        self._metrics.objects_restored.labels(self._table, location)
        self._metrics.objects_deleted.labels(self._table, location)
        for outcome in ("done", "failed"):
            self._metrics.collections.labels(self._table, location, outcome)

    def collected(self, location: str, outcome: str) -> None:
        """A run of the garbage collector ended."""
        self._metrics.collections.labels(self._table, location, outcome).inc()

    def diffs_merged(self, outcome: str) -> None:
        """A merge of diffs ended, done or failed."""
        self._metrics.merges.labels(self._table, outcome).inc()

    def object_deleted(self, location: str) -> None:
        """An object was deleted."""
        self._metrics.objects_deleted.labels(self._table, location).inc()

    def objects_restored(self, location: str, count: int) -> None:
        """Objects that were missing or damaged are whole again."""
        self._metrics.objects_restored.labels(self._table, location).inc(count)

    def objects_lost(self, location: str, count: int) -> None:
        """Set the number of objects of which no destination has a whole copy."""
        self._metrics.objects_lost.labels(self._table, location).set(count)

    def restarted(self) -> None:
        """The table's writer began again."""
        self._metrics.restarts.labels(self._table).inc()

    def fenced(self) -> None:
        """Another writer took the archive over."""
        self._metrics.fenced.labels(self._table).inc()

    def failed(self, failure: Exception) -> None:
        """An error ended the table's session, or its writer for good."""
        self._metrics.table_failures.labels(self._table, type(failure).__name__).inc()

    def rebased(self, outcome: str) -> None:
        """A re-base ended, done or failed."""
        self._metrics.rebases.labels(self._table, outcome).inc()

    def connected(self, handshake: Handshake) -> None:
        """A stream began."""
        del handshake
        self.disconnected_because = None

    def disconnected(self, error: StreamError, delay: float) -> None:
        """A stream ended, or an attempt failed."""
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
