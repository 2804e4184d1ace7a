"""What became of HTTP connections, as Prometheus metrics."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from laredo_model.http.connection_limit import Ended, HttpCounts


def families(counts: HttpCounts, prefix: str) -> Iterator[Metric]:
    """The metrics, each named ``prefix`` and what it counts."""
    ended = CounterMetricFamily(
        f"{prefix}_http_connections_ended",
        "HTTP connections ended by this program: slow, one too many, an oversized request",
        labels=["reason"],
    )
    for reason in Ended:
        ended.add_metric([reason.value], counts.ended[reason])
    yield ended
    failures = CounterMetricFamily(
        f"{prefix}_http_accept_failures",
        "Times that no HTTP connection could be accepted, for want of file descriptors",
    )
    failures.add_metric([], counts.accept_failures)
    yield failures
