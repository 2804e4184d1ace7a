"""The metrics of tables, destinations and sinks that each scrape reads from their status."""

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from laredo_snapshotter.status import TableWriterStatus, WriterState


def _unix(table: TableWriterStatus, moment: datetime | None) -> float | None:
    """None of a writer that was fenced, too: how far the other one has come it doesn't know."""
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
        "Changed rows that aren't in the archive: buffered, sealed or spilled",
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
            "Manifest commits that lost to another program's",
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
