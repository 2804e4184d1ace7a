"""Restart of the server with its table in the store, until it is ready."""

import signal
import subprocess
import sys
import time

from benchmarks.figures import Figure
from benchmarks.scenario import Scenario

SUBJECT = "restart"


def run(scenario: Scenario) -> list[Figure]:
    """After SIGTERM and after kill -9; the slower of three each."""
    scenario.ready_server()
    limit = _imports()
    return [
        Figure(
            SUBJECT,
            f"until ready, {scenario.rows:,} rows, after {how.name}",
            max(_once(scenario, how) for _ in range(3)),
            "s",
            limit,
            "Python importing the server",
            target=2.0,
            less_is_better=True,
        )
        for how in (signal.SIGTERM, signal.SIGKILL)
    ]


def _once(scenario: Scenario, how: signal.Signals) -> float:
    scenario.stop_server(how)
    began = time.perf_counter()
    scenario.start_server()
    scenario.wait_ready(pause=0.01)
    return time.perf_counter() - began


def _imports() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import laredo_fanout.app.server"], check=True)
    return time.perf_counter() - began
