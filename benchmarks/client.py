"""The client library: memory of rows, CPU of a change, stalls of the loop, waits at restarts."""

import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from benchmarks import bench_table
from benchmarks.figures import Figure
from benchmarks.scenario import Scenario, told

SUBJECT = "client"
_TRANSPORTS = ("grpc", "connect")
_MEGABYTE = 1_000_000
_RESTARTS = 10
_PATIENCE_S = 60.0


def run(scenario: Scenario) -> list[Figure]:
    """A client that keeps the whole table."""
    scenario.ready_server()
    return [
        *_memory(scenario),
        *_cpu(scenario),
        *_stalls(scenario),
        *(_restarts(scenario, transport) for transport in _TRANSPORTS),
    ]


@contextmanager
def _client(
    scenario: Scenario, what: str, transport: str, *more: object
) -> Iterator["subprocess.Popen[str]"]:
    server = scenario.connect_address if transport == "connect" else scenario.address
    arguments = [what, "--server", server, "--table", bench_table.QUALIFIED]
    arguments += ["--transport", transport, *map(str, more)]
    with scenario.running("client_loop", *arguments, what="client, keeping") as client:
        yield client


def _memory(scenario: Scenario) -> list[Figure]:
    found = {}
    for index in ("", "name", "n"):
        chosen = ("--index", index) if index else ()
        with _client(scenario, "keep", "grpc", *chosen) as client:
            told(client)
            found[index] = told(client)["memory"] / _MEGABYTE
    lines = scenario.rows * scenario.line_bytes / _MEGABYTE
    rows = Figure(
        SUBJECT,
        f"memory, {scenario.rows:,} rows of {scenario.line_bytes:.0f} bytes",
        found[""],
        "MB",
        lines,
        "the rows' bytes",
        target=500,
        less_is_better=True,
        note="anonymous, with Python and the library",
    )
    return [rows] + [
        Figure(
            SUBJECT,
            f"memory of one more index, {what}",
            found[index] - found[""],
            "MB",
            target=100,
            less_is_better=True,
        )
        for index, what in (("name", "each value once"), ("n", "1,000 values"))
    ]


def _cpu(scenario: Scenario) -> list[Figure]:
    changes = min(scenario.updates, 200_000)
    figures = []
    for transport, index in (("grpc", ""), ("connect", ""), ("grpc", "name")):
        chosen = ("--index", index) if index else ()
        with _client(scenario, "keep", transport, "--changes", changes, *chosen) as client:
            snapshot = told(client)["cpu"]
            told(client)
            with scenario.connect() as database:
                bench_table.update_in_order(database, changes, scenario.rows, 1000)
            spent = told(client)["cpu"] / changes * 1e6
        figures.append(
            Figure(
                SUBJECT,
                f"CPU of a change, {transport}{', an index' if index else ''}",
                spent,
                "µs",
                less_is_better=True,
                note=f"a row of the snapshot {snapshot / scenario.rows * 1e6:.2f} µs",
            )
        )
    return figures


def _stalls(scenario: Scenario) -> list[Figure]:
    changes = min(scenario.rows, 200_000)
    figures = []
    for transport in _TRANSPORTS:
        arguments = ("--stalls", "--index", "name", "--changes", changes)
        with _client(scenario, "keep", transport, *arguments) as client:
            snapshot = told(client)
            told(client)
            with scenario.connect() as database:
                database.execute(
                    f"UPDATE {bench_table.NAME} SET name = name || '+' WHERE id <= %s", (changes,)
                )
            transaction = told(client)
        figures += [
            Figure(
                SUBJECT,
                f"longest stall of the loop, {transport}, {what}",
                found["stall"] * 1000,
                "ms",
                target=5,
                less_is_better=True,
                note=(
                    f"{found['stall_run'] * 1000:.1f} ms without waits for a processor,"
                    f" {found['stall_cpu'] * 1000:.1f} ms of the loop's own CPU; with an index"
                ),
            )
            for what, found in (
                (f"a snapshot of {scenario.rows:,} rows", snapshot),
                (f"a transaction of {changes:,} changes", transaction),
            )
        ]
    return figures


def _restarts(scenario: Scenario, transport: str) -> Figure:
    """From the server's port being open again to the client's stream."""
    scenario.ready_server()
    with _client(scenario, "resume", transport) as client, _load(scenario):
        streams: list[dict[str, Any]] = []
        reading = threading.Thread(target=_read, args=(client, streams))
        reading.start()
        try:
            _wait_for(streams, 2)  # its first stream, and that it is ready
            waits = []
            for _ in range(_RESTARTS):
                known = len(streams)
                scenario.stop_server()
                scenario.start_server()
                opened = _opened(
                    scenario.connect_port if transport == "connect" else scenario.grpc_port
                )
                _wait_for(streams, known + 1)
                waits.append(streams[known]["at"] - opened)
                scenario.wait_ready()
        finally:
            client.terminate()
            reading.join()
    snapshots = sum(1 for stream in streams[2:] if stream["mode"] != "DELTA")
    return Figure(
        SUBJECT,
        f"wait after a restart, {transport}, longest of {_RESTARTS}",
        max(waits),
        "s",
        target=1.0,
        less_is_better=True,
        note=f"from the open port to the stream; {snapshots} snapshots",
    )


def _read(client: "subprocess.Popen[str]", streams: list[dict[str, Any]]) -> None:
    assert client.stdout is not None
    for line in client.stdout:
        streams.append(json.loads(line))


def _wait_for(streams: list[dict[str, Any]], many: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while len(streams) < many:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the client has {len(streams)} streams, not {many}")
        time.sleep(0.002)


def _opened(port: int) -> float:
    """Time at which the port begins to accept connections."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return time.time()
        time.sleep(0.002)
    raise TimeoutError(f"nobody listens on {port}")


@contextmanager
def _load(scenario: Scenario) -> Iterator[None]:
    """Twenty commits a second."""
    end = threading.Event()

    def commit() -> None:
        with scenario.connect() as database:
            while not end.wait(0.05):
                database.execute(f"UPDATE {bench_table.NAME} SET n = n + 1 WHERE id = 1")

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
