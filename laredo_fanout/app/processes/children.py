"""The main process's side of the serving processes: their ports, starts, orders and ends."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path

import structlog

from laredo_fanout.app.logs import Crashed, LogSettings, only_logged, supervised
from laredo_fanout.app.processes.clients import Clients
from laredo_fanout.app.processes.control_wire import (
    Control,
    ControlClosed,
    Message,
    WakeUps,
    options_to_json,
)
from laredo_fanout.errors import FanoutError
from laredo_fanout.serving.options import ServingOptions
from laredo_fanout.serving.ports import ClientInfo, TooManyClients
from laredo_fanout.serving.shared import SentCounts, no_repair
from laredo_fanout.store.errors import Damage
from laredo_fanout.watchdog import SERVING, Watchdog, Watched
from laredo_service.http import settings
from laredo_service.log import native_stderr
from laredo_service.retry import Backoff, Outage

_RETRY = Backoff(initial=0.1, maximum=10.0)
_HEALTHY_AFTER = 30.0
_BEYOND_GRACE = 5.0
_CHANGED_WITHIN = 8.0


def _no_check() -> None:
    """Do nothing: there is no ingest that could check the catalog."""


log = structlog.get_logger("laredo_fanout.serving")


class SpawnFailed(FanoutError):
    """A serving process couldn't be started."""


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()


@dataclass
class _Child:
    """One running serving process."""

    number: int
    #: serving-0, serving-1, ...: a process that is restarted keeps it.
    name: str
    process: asyncio.subprocess.Process
    control: Control
    wake: socket.socket
    watched: Watched
    listening: bool = False
    #: Done when it serves with the options that it was sent last, or is gone.
    changed: asyncio.Future[None] | None = None

    def has_changed(self) -> None:
        """It serves with the options that it was sent last."""
        if self.changed is not None and not self.changed.done():
            self.changed.set_result(None)


@dataclass
class ServingChildren:
    """Runs ``workers`` serving processes, and restarts each one that dies, with growing pauses."""

    workers: int
    state: Path
    options: ServingOptions
    clients: Clients
    wake_ups: WakeUps
    log_settings: LogSettings
    #: Kills one that hangs.
    watchdog: Watchdog = field(default_factory=Watchdog)
    #: Requests a catalog check, because a client waits for it.
    request_check: Callable[[], None] = _no_check
    #: Takes a peer's report ("server", "tables", "take_over"); returns this server's role. None if
    #: this server shares its slot with no other one.
    report_standby: Callable[[Message], Message] | None = None
    #: Has damage repaired that was found in the store.
    report_damage: Callable[[Damage], None] = no_repair
    #: Called with the error if a defect ended the supervision of a process.
    crashed: Crashed = only_logged
    program: Sequence[str] = (sys.executable, "-m", "laredo_fanout.app.processes.serving_process")
    #: Number of restarts.
    restarts: int = 0
    #: Number of starts that failed for lack of a process, a descriptor or memory.
    spawn_failures: int = 0
    #: The error of the last process that couldn't serve; None once one listens.
    error: str | None = None
    #: Clients that an archive was to catch up, by table and outcome.
    replays: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: What was sent to clients, by the processes' names.
    sent: dict[str, SentCounts] = field(default_factory=dict)
    _children: dict[int, _Child] = field(default_factory=dict)
    _keepers: list[asyncio.Task[None]] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=lambda: count(1))
    _draining: asyncio.Event = field(default_factory=asyncio.Event)
    _ready: bool = False

    def start(self) -> None:
        """Start them all; returns at once."""
        self._keepers = [
            supervised(self._keep(f"serving-{each}"), "serving processes", self.crashed)
            for each in range(self.workers)
        ]

    @property
    def listening(self) -> int:
        """Number of serving processes that take connections."""
        return sum(child.listening for child in self._children.values())

    @property
    def pids(self) -> list[int]:
        """The pids of the running serving processes."""
        return [child.process.pid for child in self._children.values()]

    @property
    def named_pids(self) -> dict[str, int]:
        """Process ids of the serving processes, by name."""
        return {child.name: child.process.pid for child in self._children.values()}

    def update_ready(self, ready: bool) -> None:
        """Have the serving processes answer probes with ``ready`` from now on."""
        self._ready = ready
        for child in self._children.values():
            child.control.send({"op": "health", "ready": ready})

    async def change(self, options: ServingOptions) -> None:
        """Have all of them serve with these options, and start others with them.

        Returns when no stream of another table is open any more: a process that doesn't answer is
        killed, and its clients resume at another one.
        """
        self.options = options
        loop, message = asyncio.get_running_loop(), options_to_json(self.options)
        waiting = {}
        for child in self._children.values():
            child.changed = loop.create_future()
            child.control.send({"op": "change", "serving": message})
            waiting[child.changed] = child
        if not waiting:
            return
        _, late = await asyncio.wait(waiting, timeout=_CHANGED_WITHIN)
        for changed in late:
            process = waiting[changed].process
            log.error("serving process killed: changed options not applied", pid=process.pid)
            with suppress(ProcessLookupError):
                process.kill()
        if late:
            await asyncio.wait(late)

    async def drain(self) -> None:
        """Have the processes send GoAway, wait for the grace, then kill those that are left."""
        self._draining.set()
        for child in self._children.values():
            child.control.send({"op": "drain"})
        grace = self.options.listener.drain_grace_s + _BEYOND_GRACE
        if self._keepers:
            await asyncio.wait(self._keepers, timeout=grace)
        for child in list(self._children.values()):
            log.warning("serving process killed after the grace period", pid=child.process.pid)
            with suppress(ProcessLookupError):
                child.process.kill()
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def _keep(self, name: str) -> None:
        failures, outage = 0, Outage()
        self.sent[name] = SentCounts()
        loop = asyncio.get_running_loop()
        while not self._draining.is_set():
            started = loop.time()
            failures += 1
            pause = _RETRY.delay(failures)
            try:
                await self._run_one(name)
            except SpawnFailed as failed:
                self.spawn_failures += 1
                self.error = str(failed)
                level = log.error if outage.is_news("not started") else log.debug
                level(
                    "serving process not started; retry scheduled",
                    error=self.error,
                    within_s=round(pause, 1),
                )
            if self._draining.is_set():
                return
            if loop.time() - started > _HEALTHY_AFTER:
                failures, pause = 1, _RETRY.delay(1)
                outage.end()
            self.restarts += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), pause)

    async def _run_one(self, name: str) -> None:
        child = await self._spawn(name)
        try:
            await self._run_child(child)
        finally:
            child.watched.close()

    async def _run_child(self, child: _Child) -> None:
        self._configure(child)
        self._children[child.number] = child
        self.wake_ups.add(child.wake)
        try:
            await self._listen_to(child)
        finally:
            del self._children[child.number]
            child.has_changed()
            self.wake_ups.remove(child.wake)
            lost = self.clients.leave_all(child.number)
            await child.control.close()
        code = await child.process.wait()
        if child.watched.verdict is not None:
            self.error = f"serving process {child.process.pid} was {child.watched.verdict}"
        if not self._draining.is_set():
            log.error(
                "serving process died; restart scheduled",
                pid=child.process.pid,
                exit_code=code,
                clients=lost,
                error=self.error,
            )

    def _configure(self, child: _Child) -> None:
        """Send its options, which it waits for, before any message that every child is sent."""
        if self._draining.is_set():
            child.control.send({"op": "drain"})
            return
        serving = options_to_json(self.options)
        child.control.send({"op": "options", "state": str(self.state), "serving": serving})
        child.control.send({"op": "health", "ready": self._ready})

    async def _spawn(self, name: str) -> _Child:
        """Start a process.

        :raises SpawnFailed: if the system has no room for it; nothing of it stays.
        """
        async with AsyncExitStack() as undo:
            try:
                ours, theirs = map(undo.enter_context, socket.socketpair())
                wake_ours, wake_theirs = map(undo.enter_context, socket.socketpair())
                watched = self.watchdog.watch(SERVING, name)
                undo.callback(watched.close)
                ends = theirs.fileno(), wake_theirs.fileno(), watched.end
                process = await self._start_process(*ends)
                undo.push_async_callback(_end, process)
                watched.started(process)
                control = await Control.over(ours)
            except OSError as failed:
                raise SpawnFailed(f"a serving process can't be started: {failed}") from failed
            undo.pop_all()
        theirs.close()
        wake_theirs.close()
        return _Child(next(self._numbers), name, process, control, wake_ours, watched)

    async def _start_process(self, *ends: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self.program,
            *map(str, ends),
            *self.log_settings.arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=native_stderr(),
            pass_fds=ends,
            # Ctrl-C on a terminal is for the main process, which drains the others.
            process_group=0,
        )

    async def _listen_to(self, child: _Child) -> None:
        while True:
            try:
                message = await child.control.receive()
            except ControlClosed:
                return
            answer = self._handle(child, message)
            if answer is not None:
                child.control.send({"op": "answer", "call": message["call"], **answer})

    def _handle(self, child: _Child, message: Message) -> Message | None:
        key = (child.number, message.get("lease", 0))
        match message["op"]:
            case "listening":
                child.listening, self.error = True, None
                log.info("serving process started", pid=child.process.pid, port=message["port"])
            case "failed":
                self.error = message["message"]
            case "register" | "pin" | "standby" | "clients":
                return self._answer(key, message)
            case "update" | "unpin" | "close":
                self._note(child, key, message)
            case "replay":
                self.replays[message["table"], message["outcome"]] += 1
            case "sent":
                self.sent[child.name].add(message["bytes"], message["messages"])
            case "check":
                self.request_check()
            case "damaged":
                self.report_damage(Damage(*message["damage"]))
            case "changed":
                child.has_changed()
            case unknown:
                raise AssertionError(f"control message {unknown!r} from a serving process")
        return None

    def _answer(self, key: tuple[int, int], message: Message) -> Message:
        """Handle a message that is answered."""
        match message["op"]:
            case "register":
                return self._register(key, message)
            case "standby":
                take = self.report_standby
                return {"role": take and take(message)}
            case "clients":
                return {"clients": [asdict(each) for each in self.clients.of(message["table"])]}
        self.clients.pin(key, message["table"], message["after"])
        return {}

    def _note(self, child: _Child, key: tuple[int, int], message: Message) -> None:
        """Handle a session's message that isn't answered."""
        match message["op"]:
            case "update":
                for lease, sequence, depth, state in message["leases"]:
                    self.clients.update((child.number, lease), sequence, depth, state)
            case "unpin":
                self.clients.unpin(key)
            case "close":
                self.clients.leave(key, message["reason"])

    def _register(self, key: tuple[int, int], message: Message) -> Message:
        try:
            self.clients.register(key, ClientInfo(**message["info"]))
        except TooManyClients as full:
            return {"full": str(full)}
        return {}


_PATIENCE = 3.0


class ListenAddressTaken(FanoutError):
    """A configured address can't be listened on."""

    def __init__(self, host: str, port: int, key: str, error: OSError) -> None:
        # The message has the address already; asyncio's text repeats it.
        why = str(error.strerror or error).partition(" (while attempting")[0]
        super().__init__(
            f"can't listen on {host}:{port} ({key}): {why}; stop what listens there, or configure"
            " another address"
        )


async def reserve(host: str, port: int, key: str) -> socket.socket:
    """Bind (without listening), so that the port stays ours while serving processes are restarted.

    Serving processes join with SO_REUSEPORT, which a second server of the same user could do by
    accident. So the port is first bound alone. The serving processes of a server that was killed
    end a moment after it, so that is tried for three seconds.

    :param key: the configuration path, for the message.
    :raises ListenAddressTaken: if another process listens there.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE
    while True:
        try:
            found = await loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, _, _, _, address = found[0]
            return _bound(family, address)
        except OSError as taken:
            if loop.time() >= deadline or taken.errno != errno.EADDRINUSE:
                raise ListenAddressTaken(host, port, key, taken) from taken
            await asyncio.sleep(0.05)


def listen(host: str, port: int, key: str) -> socket.socket:
    """Listen at the address, for this process alone.

    :param key: the configuration path, for the message.
    :raises ListenAddressTaken: if it can't.
    """
    try:
        return settings.listen(host, port)
    except OSError as taken:
        raise ListenAddressTaken(host, port, key, taken) from taken


def _bound(family: int, address: tuple[object, ...]) -> socket.socket:
    with socket.socket(family, socket.SOCK_STREAM) as alone:
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        alone.bind(address)
        chosen = alone.getsockname()
    shared = socket.socket(family, socket.SOCK_STREAM)
    shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        shared.bind(chosen)
    except OSError:
        shared.close()
        raise
    return shared
