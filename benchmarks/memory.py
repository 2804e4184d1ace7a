"""The most anonymous memory each process took, over everything that was run before."""

import subprocess
import sys

from benchmarks.figures import Figure
from benchmarks.scenario import Scenario

SUBJECT = "memory"
_MEGABYTE = 1_000_000
_BARE = """
import sys
import laredo_fanout.client, laredo_fanout.app.server
print(open("/proc/self/smaps_rollup").read())
"""


def run(scenario: Scenario) -> list[Figure]:
    """Peaks so far; a server that is ready counts even if nothing else was run."""
    scenario.ready_server()
    limit = _imports()
    return [
        Figure(
            SUBJECT,
            what,
            peak / _MEGABYTE,
            "MB",
            limit / _MEGABYTE,
            "Python with the server's imports",
            target=100,
            less_is_better=True,
            note="250 clients a process" if what == "clients, latency" else "",
        )
        for what, peak in sorted(scenario.memory.peaks.items())
        if what != "bare grpcio" and not what.startswith(("s3 ", "spark: "))
    ]


def _imports() -> int:
    found = subprocess.run(
        [sys.executable, "-c", _BARE], capture_output=True, text=True, check=True
    )
    lines = found.stdout.splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anon"))
