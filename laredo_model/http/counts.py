"""Counts of HTTP connections that were ended or refused, and the metrics that show them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from prometheus_client.core import CounterMetricFamily, Metric


class EndReason(StrEnum):
    """Reason why this program ended a connection."""

    SLOW = "slow"
    """Its request wasn't whole, or its answer not read, in time."""
    FULL = "full"
    """Too many were open."""
    OVERSIZED = "oversized"
    """Its request had too many bytes."""


@dataclass
class HttpCounts:
    """Counters of ended connections, by reason, and of those that couldn't be accepted."""

    #: Connections that this program ended.
    ended: Counter[EndReason] = field(default_factory=Counter)
    #: Times that a connection couldn't be accepted, mostly for want of file descriptors.
    accept_failures: int = 0


def families(counts: HttpCounts, prefix: str) -> Iterator[Metric]:
    """The counts as Prometheus metrics whose names begin with ``prefix``."""
    ended = CounterMetricFamily(
        f"{prefix}_http_connections_ended",
        "HTTP connections ended by this program: slow, one too many, an oversized request",
        labels=["reason"],
    )
    for reason in EndReason:
        ended.add_metric([reason.value], counts.ended[reason])
    yield ended
    failures = CounterMetricFamily(
        f"{prefix}_http_accept_failures",
        "Times that no HTTP connection could be accepted, for want of file descriptors",
    )
    failures.add_metric([], counts.accept_failures)
    yield failures
