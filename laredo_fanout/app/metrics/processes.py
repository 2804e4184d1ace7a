"""Metrics of the server's processes: their memory, and what the serving ones have sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, Metric

from laredo_fanout.serving.sent import SentCounts
from laredo_service.metrics import process_memory


def families(pids: Mapping[str, int], sent: Mapping[str, SentCounts]) -> Iterator[Metric]:
    """Both, by the processes' names; a restarted process goes on with the counts of its name."""
    yield process_memory("laredo", pids.items())
    size = CounterMetricFamily(
        "laredo_fanout_sent_bytes",
        "Bytes sent to clients, by serving process: their streams' messages, before TLS",
        labels=["process"],
    )
    messages = CounterMetricFamily(
        "laredo_fanout_sent_messages",
        "Messages sent to clients, by serving process; one may hold many rows or changes",
        labels=["process"],
    )
    for process, counts in sent.items():
        size.add_metric([process], counts.bytes)
        messages.add_metric([process], counts.messages)
    yield from (size, messages)
