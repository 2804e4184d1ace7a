"""From PostgreSQL's commit time to the client's callback, at 20 commits/s."""

import struct
import subprocess
import threading
import time
from contextlib import ExitStack

from benchmarks import bench_table
from benchmarks.figures import Figure
from benchmarks.scenario import Scenario, percentile, told

SUBJECT = "latency"
PER_SECOND = 20
"""Commits."""
_SKIP = 40  # the first two seconds
_PER_PROCESS = 250
_LIMIT_SLOT = "bench_latency"
_EPOCH_US = 946_684_800_000_000  # PostgreSQL counts from 2000
_CASES = ((1, 0.5, 4.0), (100, 0.95, 20.0), (500, 0.95, 90.0))


def run(scenario: Scenario) -> list[Figure]:
    """1, 100 and 500 clients; the limit is pg_recvlogical's output, read through a pipe."""
    scenario.ready_server()
    bare = _recvlogical(scenario)
    figures = []
    for clients, share, target in _CASES:
        found = of_clients(scenario, scenario.address, clients)
        half, most = percentile(found, 0.5), percentile(found, 0.95)
        figures.append(
            Figure(
                SUBJECT,
                f"commit to callback, {clients} client{'s'[: clients > 1]}, p{share * 100:.0f}",
                half if share == 0.5 else most,
                "ms",
                percentile(bare, share),
                "pg_recvlogical, one reader",
                target=target,
                less_is_better=True,
                note=f"p50 {half:.1f}, p95 {most:.1f}, max {max(found):.1f} ms",
            )
        )
    return figures


def of_clients(
    scenario: Scenario, address: str, many: int, *, place: tuple[str, str] | None = None
) -> list[float]:
    """Milliseconds from commit to callback, of each commit at each client of the server there.

    ``place``: its position and history, if it isn't the scenario's server or a relay of it.
    """
    commits = _SKIP + int(scenario.seconds * PER_SECOND)
    position, history = place or scenario.place()
    with ExitStack() as stack:
        processes = []
        for start in range(0, many, _PER_PROCESS):
            arguments = {
                "--server": address,
                "--table": bench_table.QUALIFIED,
                "--position": position,
                "--history": history,
                "--name": start,
                "--clients": min(_PER_PROCESS, many - start),
                "--commits": commits,
                "--skip": _SKIP,
            }
            flat = [word for pair in arguments.items() for word in pair]
            processes.append(
                stack.enter_context(
                    scenario.running("latency_clients", *flat, what="clients, latency")
                )
            )
        for process in processes:
            told(process)
        commit(scenario, commits)
        return [latency for process in processes for latency in told(process)["latencies"]]


def commit(scenario: Scenario, commits: int) -> None:
    """Commit updates of one row each, PER_SECOND of them."""
    with scenario.connect() as database:
        began = time.perf_counter()
        for number in range(commits):
            time.sleep(max(0.0, began + number / PER_SECOND - time.perf_counter()))
            database.execute(
                f"UPDATE {bench_table.NAME} SET n = n + 1, updated = now() WHERE id = %s",
                (number % scenario.rows + 1,),
            )


def _recvlogical(scenario: Scenario) -> list[float]:
    commits = _SKIP + int(min(scenario.seconds, 5) * PER_SECOND)
    with scenario.connect() as database:
        database.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (_LIMIT_SLOT,)
        )
    reader = subprocess.Popen(
        scenario.recvlogical(_LIMIT_SLOT, "--file=-"), stdout=subprocess.PIPE, bufsize=0
    )
    latencies: list[float] = []

    def read() -> None:
        assert reader.stdout is not None
        while chunk := reader.stdout.read(1 << 16):
            now = time.time()
            # A Commit message and pg_recvlogical's newline: C, flags, two positions, the time.
            if len(chunk) >= 27 and chunk[-27:-26] == b"C":
                committed: int = struct.unpack(">q", chunk[-9:-1])[0] + _EPOCH_US
                latencies.append((now - committed / 1e6) * 1000)

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.5)
    commit(scenario, commits)
    time.sleep(0.2)
    reader.terminate()
    reader.wait()
    thread.join()
    with scenario.connect() as database:
        database.execute("SELECT pg_drop_replication_slot(%s)", (_LIMIT_SLOT,))
    return latencies[_SKIP:]
