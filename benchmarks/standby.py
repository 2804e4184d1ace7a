"""Cost of a standby for its holder, and the time of a takeover."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import psutil

from benchmarks import bench_table, latency
from benchmarks.figures import Figure
from benchmarks.processes import SCRIPTS, Program, free_port, get_json, wait_until
from benchmarks.scenario import Scenario, percentile
from laredo_fanout.client import Backoff, Changes, Endpoint, Handshake, Subscription, SyncOptions
from laredo_model import position as position_

SUBJECT = "standby"
_SLOT = "laredo_bench_pair"
_ROUNDS = 3
_TAKEOVERS = 10
_SIZE = 1000
_PATIENCE_S = 600
_LOOK_S = 0.05
_COMMIT_EVERY_S = 0.02
_LEAST_SHARE, _MOST_LATENCY = 0.9, 2.0
_MOST_TAKEOVER_S, _MOST_HANDOVER_S = 5.0, 1.0


@dataclass
class _Server:
    """One of the two; ``address`` is of its gRPC side."""

    name: str
    grpc: int = field(default_factory=free_port)
    http: int = field(default_factory=free_port)
    program: Program | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.grpc}"

    @property
    def source(self) -> dict[str, Any]:
        """The source as /status shows it; empty while the server doesn't answer."""
        assert self.program is not None
        self.program.check()
        status = get_json(f"http://127.0.0.1:{self.http}/status")
        return {} if status is None or not status["ready"] else status["sources"]["pg"]

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.program is not None:
            self.program.stop(how)
            self.program = None


class _Pair:
    """A holder and a standby of a slot of their own; at first none of them runs."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.servers = [_Server("a"), _Server("b")]

    def start(self, server: _Server, synchronous: int = 1) -> None:
        """Start one, and wait until it is ready."""
        scenario = self.scenario
        peers = ", ".join(f'"{each.address}"' for each in self.servers)
        config = scenario.directory / f"pair-{server.name}.conf"
        config.write_text(
            f"""
            state {{ path = "{scenario.directory / f"pair-{server.name}"}" }}
            sources {{ pg {{ connection = "{scenario.dsn}", slot_name = {_SLOT}
                             receive_timeout = 10m }} }}
            standby {{ peers = [{peers}], token = between-us, synchronous = {synchronous} }}
            fanout {{ grpc {{ host = "127.0.0.1", port = {server.grpc} }}, drain_grace = 2s }}
            http {{ host = "127.0.0.1", port = {server.http} }}
            tables = [ {{ table = {bench_table.NAME}
                          targets = [ {{ type = replication-fanout
                              journal {{ max_entries = 5000000, max_age = 24h }} }} ] }} ]
            """
        )
        command = [str(SCRIPTS / "laredo-fanout"), "--config", str(config)]
        server.program = Program(command, scenario.directory / f"pair-{server.name}.log")
        self._wait(lambda: server.source, f"the readiness of server {server.name}")

    def wait_complete(self, holder: _Server) -> None:
        """Until the holder's standby has all that the holder has now."""
        wanted = position_.parse(self.place(holder)[0])

        def complete() -> bool:
            found = holder.source
            standbys = found["standby"]["standbys"] if found else []
            return any(
                each["complete"] and position_.parse(each["position"]) >= wanted
                for each in standbys
            )

        self._wait(complete, "the standby's completeness")

    @staticmethod
    def place(server: _Server) -> tuple[str, str]:
        """Position and history of the ready server, to resume from."""
        found = server.source
        return found["position"], found["history"]

    @contextmanager
    def configured(self, synchronous: int, *, standby: bool) -> Iterator[_Server]:
        """The holder, with or without its standby; both are stopped in the end."""
        holder, other = self.servers
        self.start(holder, synchronous)
        if standby:
            self.start(other, synchronous)
            self.wait_complete(holder)
        try:
            yield holder
        finally:
            # A holder without a standby hands nothing over.
            other.stop()
            holder.stop()

    @staticmethod
    def _wait(condition: Callable[[], Any], what: str) -> None:
        wait_until(condition, timeout=_PATIENCE_S, what=what, pause=_LOOK_S)


@dataclass
class _Way:
    """The holder with these settings: changes a second and latencies in ms, of each round."""

    synchronous: int
    standby: bool
    rates: list[float] = field(default_factory=list)
    latencies: list[list[float]] = field(default_factory=list)

    @property
    def all_latencies(self) -> list[float]:
        return [each for found in self.latencies for each in found]


def run(scenario: Scenario) -> list[Figure]:
    """Backlog and latency of a holder, by turns; then takeovers.

    It is alone, or has a standby that confirmations don't wait for, or one that they wait for.
    """
    scenario.stop_server()
    pair = _Pair(scenario)
    try:
        figures = _costs(pair)
        return figures + _takeovers(pair)
    finally:
        for each in pair.servers:
            each.stop(signal.SIGKILL)
        with scenario.connect() as database:
            wait_until(lambda: _walsender(database) is None, timeout=60, what="the slot's release")
            database.execute("SELECT pg_drop_replication_slot(%s)", (_SLOT,))


def _costs(pair: _Pair) -> list[Figure]:
    alone, beside, waiting = ways = [_Way(0, False), _Way(0, True), _Way(1, True)]
    for number in range(_ROUNDS):
        for way in ways:
            with pair.configured(way.synchronous, standby=way.standby) as holder:
                found = latency.of_clients(
                    pair.scenario, holder.address, 1, place=pair.place(holder)
                )
                way.latencies.append(found)
                way.rates.append(_rate(pair, holder))
            pair.scenario.say(
                f"round {number + 1}: {'a' if way.standby else 'no'} standby, synchronous ="
                f" {way.synchronous}: {way.rates[-1]:,.0f} changes/s, p50"
                f" {percentile(found, 0.5):.1f} ms, p95 {percentile(found, 0.95):.1f} ms"
            )
    load = f"load {psutil.getloadavg()[1]:.1f}"
    return [
        _of_backlog(waiting, beside, "synchronous = 0, with the standby", load, _LEAST_SHARE),
        _of_backlog(waiting, alone, "synchronous = 0, no standby", load, None),
        _of_latency(waiting, beside, "synchronous = 0, with the standby", load, _MOST_LATENCY),
        _of_latency(waiting, alone, "synchronous = 0, no standby", load, None),
    ]


def _of_backlog(way: _Way, limit: _Way, what: str, load: str, target: float | None) -> Figure:
    ratios = [one / other for one, other in zip(way.rates, limit.rates, strict=True)]
    return Figure(
        SUBJECT,
        "updates into the holder's store, synchronous = 1",
        median(way.rates),
        "changes/s",
        median(limit.rates),
        what,
        target=target,
        target_is_ratio=True,
        note=f"ratios of the pairs: least {min(ratios):.2f}, median {median(ratios):.2f}; {load}",
    )


def _of_latency(way: _Way, limit: _Way, what: str, load: str, target: float | None) -> Figure:
    ratios = [
        percentile(one, 0.5) / percentile(other, 0.5)
        for one, other in zip(way.latencies, limit.latencies, strict=True)
    ]
    return Figure(
        SUBJECT,
        "commit to callback, synchronous = 1, p50",
        percentile(way.all_latencies, 0.5),
        "ms",
        percentile(limit.all_latencies, 0.5),
        what,
        target=target,
        target_is_ratio=True,
        less_is_better=True,
        note=f"p95 {percentile(way.all_latencies, 0.95):.1f} against"
        f" {percentile(limit.all_latencies, 0.95):.1f} ms; ratios of the pairs: least"
        f" {min(ratios):.2f}, median {median(ratios):.2f}; {load}",
    )


def _rate(pair: _Pair, holder: _Server) -> float:
    """Changes a second of a backlog, into the holder's store.

    The walsender is suspended while the updates are made: the holder goes on answering its standby.
    """
    scenario = pair.scenario
    with scenario.connect() as database:
        sender = _walsender(database)
        assert sender is not None
        sender.suspend()
        try:
            bench_table.update_in_order(database, scenario.updates, scenario.rows, _SIZE)
            wanted = position_.parse(scenario.wal_position())
            database.execute("CHECKPOINT")
        finally:
            began = time.perf_counter()
            sender.resume()

        def reached() -> bool:
            found = holder.source
            return bool(found) and position_.parse(found["position"]) >= wanted

        wait_until(reached, timeout=_PATIENCE_S, what="the backlog's end", pause=_LOOK_S)
        return scenario.updates / (time.perf_counter() - began)


def _walsender(database: Any) -> psutil.Process | None:
    row = database.execute(
        "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", (_SLOT,)
    ).fetchone()
    return None if row is None or row[0] is None else psutil.Process(row[0])


# ---------------------------------------------------------------- takeovers


def _takeovers(pair: _Pair) -> list[Figure]:
    for each in pair.servers:
        pair.start(each)
    killed, stopped = (_taken_over(pair, how) for how in (signal.SIGKILL, signal.SIGTERM))
    cases = ((killed, "kill -9", _MOST_TAKEOVER_S), (stopped, "SIGTERM", _MOST_HANDOVER_S))
    return [
        Figure(
            SUBJECT,
            f"{what} to the first later change at a client, p50",
            percentile(found, 0.5),
            "s",
            target=target,
            less_is_better=True,
            note=f"p95 {percentile(found, 0.95):.2f}, least {min(found):.2f} s of {len(found)};"
            f" load {psutil.getloadavg()[0]:.1f}",
        )
        for found, what, target in cases
    ]


def _taken_over(pair: _Pair, how: signal.Signals) -> list[float]:
    """Seconds from the signal to a client's first change that was committed after it."""
    found = []
    holder, other = pair.servers
    for _ in range(_TAKEOVERS):
        if holder.source["standby"]["role"] != "holder":
            holder, other = other, holder
        pair.wait_complete(holder)
        found.append(_one_takeover(pair, holder, other, how))
        pair.scenario.say(f"{how.name}: taken over in {found[-1]:.2f} s")
        holder.stop(how)
        pair.start(holder)
    return found


def _one_takeover(pair: _Pair, holder: _Server, other: _Server, how: signal.Signals) -> float:
    over = threading.Event()
    with ExitStack() as stack:
        writing = threading.Thread(target=_write, args=(pair.scenario, over))
        writing.start()
        stack.callback(writing.join)
        stack.callback(over.set)
        return asyncio.run(_follow(pair, holder, other, how))


def _write(scenario: Scenario, over: threading.Event) -> None:
    with scenario.connect() as database:
        while not over.wait(_COMMIT_EVERY_S):
            database.execute(
                f"UPDATE {bench_table.NAME} SET n = n + 1, updated = now() WHERE id = 1"
            )


async def _follow(pair: _Pair, holder: _Server, other: _Server, how: signal.Signals) -> float:
    position, history = pair.place(holder)
    options = SyncOptions(
        bench_table.QUALIFIED,
        "bench-takeover",
        position=position_.parse(position),
        history=position_.parse_history(history),
    )
    endpoint = Endpoint(holder.address, others=(other.address,))
    backoff = Backoff(initial=0.05, maximum=0.2)
    at = 0.0
    async with (
        asyncio.timeout(_PATIENCE_S),
        Subscription(endpoint, options, backoff=backoff) as events,
    ):
        async for event in events:
            if isinstance(event, Handshake) or not isinstance(event, Changes):
                continue
            if not at:
                assert holder.program is not None
                at = time.time()
                holder.program.process.send_signal(how)
            elif event.times_us[-1] / 1e6 > at:
                return time.time() - at
    raise AssertionError("the client's stream ended")
