"""Processes that can't be started, and calls that end while they register."""

import asyncio
import os
import resource
import socket
import sys
from pathlib import Path

import pytest

from laredo_fanout.app.processes import snapshot_schedule
from laredo_fanout.app.processes.children import ServingChildren
from laredo_fanout.app.processes.clients import Clients, RemoteRegistry
from laredo_fanout.app.processes.control_wire import Control, ControlClosed, WakeUps
from laredo_fanout.serving.options import ListenerOptions, ServingOptions, ServingTableOptions
from laredo_fanout.serving.ports import ClientInfo, TooManyClients
from laredo_fanout.store.writer import Store
from laredo_service.retry import Backoff
from tests.fanout.app.running_server import Running, running, scheduled_snapshots, serving_children
from tests.support.processes import until
from tests.support.server.serving_world import USERS, Writer, rows

SERVING = ("-m", "laredo_fanout.app.processes.serving_process")


def children(tmp_path: Path, **more: object) -> ServingChildren:
    listener = ListenerOptions("127.0.0.1", 0, drain_grace_s=0.5)
    options = ServingOptions(listener, {USERS: ServingTableOptions()})
    return serving_children(tmp_path / "state", options, **more)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def install(python: Path) -> None:
    """The missing program is there now, whole at once."""
    beside = python.with_suffix(".new")
    beside.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    beside.chmod(0o755)
    beside.rename(python)


async def test_a_serving_process_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    python = tmp_path / "python"
    with Store.open(tmp_path / "state", max_size=1 << 28) as store:
        Writer(store, WakeUps()).begin()  # type: ignore[arg-type]
        before = descriptors()
        trying = children(tmp_path, program=(str(python), *SERVING))
        trying.start()
        try:
            await until(lambda: trying.spawn_failures >= 3)
            assert "can't be started" in (trying.error or "") and "python" in (trying.error or "")
            assert descriptors() == before
            install(python)
            await until(lambda: trying.listening == 1)
            assert trying.error is None
        finally:
            await trying.drain()


async def test_without_descriptors_it_waits_until_there_are_some(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        (pid,) = world.children.pids
        # No number below three is ever free, whatever else is closed meanwhile.
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            os.kill(pid, 9)
            await until(lambda: world.children.spawn_failures >= 2)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await until(lambda: world.children.listening == 1)


async def test_a_drain_waits_for_no_pause(tmp_path: Path) -> None:
    trying = children(tmp_path, program=("/nonexistent/python",))
    trying.start()
    await until(lambda: trying.spawn_failures >= 4)
    (keeper,) = trying._keepers
    await trying.drain()
    assert not keeper.cancelled() and keeper.exception() is None


async def test_a_supervisor_that_crashes_is_not_silent(tmp_path: Path) -> None:
    """A serving process that speaks nonsense is a mistake of ours: the program hears of it."""
    speaks = (
        "import socket, sys, time; end = socket.socket(fileno=int(sys.argv[1])); "
        'said = b\'{"op":"nonsense"}\'; end.sendall(len(said).to_bytes(4, "big") + said); '
        "end.recv(1)"
    )
    crashed: list[tuple[str, BaseException]] = []
    trying = children(
        tmp_path,
        program=(sys.executable, "-c", speaks),
        crashed=lambda what, why: crashed.append((what, why)),
    )
    trying.start()
    await until(lambda: crashed)
    assert crashed[0][0] == "serving processes" and "nonsense" in str(crashed[0][1])
    await trying.drain()


async def test_a_snapshot_process_that_cannot_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_schedule, "_RETRY", Backoff(0.05, 300.0))
    python = tmp_path / "python"
    with Store.open(tmp_path / "state", max_size=1 << 28) as store:
        writer = Writer(store, WakeUps())  # type: ignore[arg-type]
        writer.begin()
        writer.publish(rows(0, 3))
        schedule = scheduled_snapshots(tmp_path, program=(str(python), "-c", _TAKES_ONE))
        schedule.start()
        try:
            await until(lambda: (schedule.of(USERS) or {})["failed"] >= 2)
            assert "can't be started" in (schedule.of(USERS) or {})["error"]
            # One that says half an answer, then one that says all of it.
            install(python)
            await until(lambda: "no answer" in str((schedule.of(USERS) or {})["error"]))
            (tmp_path / "state" / "whole").touch()
            await until(lambda: schedule.written(USERS))
        finally:
            await schedule.stop()


_TAKES_ONE = """
import json, pathlib, sys
order = json.loads(sys.stdin.readline())
whole = (pathlib.Path(order["state"]) / "whole").exists()
answer = json.dumps({"done": True, "written": True, "snapshot": {"snapshot_id": "x"}})
print(answer if whole else answer[:20])
"""


class Main:
    """The main process's end of a control connection: it registers, and answers when it likes."""

    def __init__(self, control: Control) -> None:
        self.clients = Clients(100)
        self.control = control
        self.handled = 0

    async def listen(self) -> None:
        while True:
            try:
                message = await self.control.receive()
            except ControlClosed:
                return
            self.handled += 1
            key = (1, message.get("lease", 0))
            if message["op"] == "register":
                self.clients.register(key, ClientInfo(**message["info"]))
            elif message["op"] == "close":
                self.clients.leave(key, message["reason"])
            if "call" in message:
                self.control.send({"op": "answer", "call": message["call"]})


async def test_a_call_that_is_cancelled_while_it_registers_keeps_no_place() -> None:
    """At each of the awaits on the way: before it is asked, asked, answered, and after."""
    ours, theirs = socket.socketpair()
    main, control = Main(await Control.over(ours)), await Control.over(theirs)
    registry = RemoteRegistry(control)
    tasks = [asyncio.create_task(main.listen()), asyncio.create_task(_hear(control, registry))]
    info = ClientInfo("a", USERS, "ipv4:127.0.0.1:1", True, False, 0)
    outcomes = set()
    for passes in range(40):
        call = asyncio.create_task(registry.register(info))
        for _ in range(passes):
            await asyncio.sleep(0)
        call.cancel()
        try:
            (await call).close("client")
            outcomes.add("registered")
        except asyncio.CancelledError:
            outcomes.add("cancelled")
        last = await registry.register(info)
        assert len(main.clients) == 1, passes
        last.close("client")
        await until(lambda: len(main.clients) == 0)
    assert outcomes == {"registered", "cancelled"}
    await control.close()
    await main.control.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _hear(control: Control, registry: RemoteRegistry) -> None:
    while True:
        registry.answered(await control.receive())


async def test_streams_that_are_cut_at_once_leave_no_client(tmp_path: Path) -> None:
    """Cut streams leave no client behind, through real processes and connections."""
    async with running(tmp_path, max_clients=5) as world:
        for _ in range(30):
            await _cut(world)
        await until(lambda: len(world.clients) == 0)
        with pytest.raises(TooManyClients):
            for number in range(6):
                world.clients.register((9, number), ClientInfo("a", USERS, "x", True, False, 0))


async def _cut(world: Running) -> None:
    subscription = world.subscription("short")
    entering = asyncio.create_task(subscription.__aenter__())
    await asyncio.sleep(0)
    entering.cancel()
    await asyncio.gather(entering, return_exceptions=True)
    await subscription.__aexit__(None, None, None)
