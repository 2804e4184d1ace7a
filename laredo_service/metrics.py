"""Metrics of a program's build and processes, and the answer to a scrape."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder

from laredo_service import build

MAIN = "main"
"""The label of the process that is scraped."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


def build_info(prefix: str) -> GaugeMetricFamily:
    """The build as a metric of value 1, whose name begins with ``prefix``."""
    gauge = GaugeMetricFamily(
        f"{prefix}_build_info",
        "1; its labels name the version that runs, and the commit that it was built from",
        labels=["version", "commit"],
    )
    gauge.add_metric([build.version(), build.commit()], 1.0)
    return gauge


def resident_bytes(pid: int) -> int | None:
    """The resident set of a process; None if it has ended, or where there is no /proc."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return None


def process_memory(prefix: str, processes: Iterable[tuple[str, int]]) -> GaugeMetricFamily:
    """The metric of these processes (label and pid) and of this one.

    One that has ended is absent. Pages that processes share, such as those of the store's map,
    count in each.
    """
    gauge = GaugeMetricFamily(
        f"{prefix}_process_resident_memory_bytes",
        "Resident memory of each process of the program; pages that they share count in each",
        labels=["process"],
    )
    for name, pid in ((MAIN, os.getpid()), *processes):
        resident = resident_bytes(pid)
        if resident is not None:
            gauge.add_metric([name], resident)
    return gauge


# The answer to a scrape: Prometheus' text format, or OpenMetrics if the client accepts it.


class Exposition(NamedTuple):
    """Metrics as they are sent."""

    body: bytes
    #: The Content-Type of its format.
    content_type: str


def exposed(registry: CollectorRegistry, accept: str) -> Exposition:
    """The registry's metrics, in the format that the request's Accept header asks for."""
    encoder, content_type = choose_encoder(accept)
    return Exposition(encoder(registry), content_type)
