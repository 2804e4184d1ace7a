"""A proxy between a client and an AWS service (or its test server) at which things go wrong.

    with FaultProxy(endpoint, seed=7) as proxy:
        proxy.add(Rule(drop(after=True), operation="PutObject", key="*/manifest.json"))
        client = boto3.client("s3", endpoint_url=proxy.endpoint)

What happens is what the first chooser that wants something wants; nothing, if
none does. A chooser's chances are drawn from the seed, the operation and how
many of that operation there were, so they don't depend on how other requests
fall in between. Everything is kept in ``log``.
"""

import asyncio
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit
from weakref import WeakSet

from tests.support.faults.fault import Chooser, Fault
from tests.support.faults.http1 import Broken, Message, read_answer, read_body, read_head
from tests.support.faults.operation import Operation, operation_of

T = TypeVar("T")

LIMIT = 1 << 17
"""Bytes that a head may have."""


@dataclass
class Seen:
    """One request. ``statuses``: what the service answered, each time it got it."""

    number: int
    operation: Operation
    fault: str | None
    statuses: list[int]

    def __str__(self) -> str:
        what = f"{self.number} {self.operation.name} {self.operation.key}"
        return f"{what}: {self.fault or 'through'} {self.statuses}"


Witness = Callable[[Operation, Message, Message], None]
"""Is told of each request that reached the service, and what the service answered."""


class FaultProxy:
    """Listens on a port of its own of the loopback interface, in a thread of its own."""

    def __init__(self, upstream: str, seed: int = 0) -> None:
        """``upstream``: the service's URL. It gets no truncated requests: S3 refuses them, but
        ministack keeps as an object what it got [tried]."""
        parts = urlsplit(upstream)
        assert parts.scheme == "http" and parts.hostname, "only plain HTTP"
        self.upstream = (parts.hostname, parts.port or 80)
        self.seed = seed
        self.log: list[Seen] = []
        self.witnesses: list[Witness] = []
        self.port = 0
        self._choosers: list[Chooser] = []
        self._lock = threading.Lock()
        self._counted: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._later: set[asyncio.Task[Any]] = set()
        self._transports: WeakSet[asyncio.WriteTransport] = WeakSet()

    @property
    def endpoint(self) -> str:
        """The URL to give to clients instead of the service's."""
        return f"http://127.0.0.1:{self.port}"

    def add(self, *choosers: Chooser) -> None:
        """Let these decide, after those that are there already."""
        with self._lock:
            self._choosers.extend(choosers)

    def clear(self) -> None:
        """Nothing goes wrong any more; what is under way ends as it was to."""
        with self._lock:
            self._choosers.clear()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Connections are refused meanwhile, and those that there were are reset."""
        self._call(self._stop_listening())
        try:
            yield
        finally:
            self._call(self._listen())

    def settle(self, timeout: float = 120) -> None:
        """Wait until no late request is on its way any more."""
        self._call(self._wait_for_late(), timeout)

    def faults(self) -> Counter[str]:
        """Number of times that each fault was injected."""
        return Counter(seen.fault for seen in list(self.log) if seen.fault)

    def requests(self, operation: str | None = None) -> list[Seen]:
        """Requests seen up to now."""
        return [seen for seen in list(self.log) if operation in (None, seen.operation.name)]

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy")
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # In the loop's thread.

    def _call(self, work: Coroutine[Any, Any, None], timeout: float = 120) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    async def _listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        # asyncio's own server drops what it has just accepted, unclosed, when it is closed
        # in the same turn: Server._attach refuses, and nobody is told (Python 3.11).
        connection, _ = self._listener.accept()
        task = self._loop.create_task(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stop_listening(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        await _turns()  # a connection that was just accepted begins to be served
        await _ended(self._tasks)
        for transport in list(self._transports):
            _reset(transport)  # one that is closed still waits for a client that reads
        await _turns()

    async def _wait_for_late(self) -> None:
        while self._later:
            await asyncio.wait(self._later)

    async def _close(self) -> None:
        await self._stop_listening()
        await _ended(self._later)
        await _turns()

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=LIMIT)
        self._transports.add(writer.transport)
        try:
            while await _Exchange(self, reader, writer).run():
                pass
        except (Broken, OSError, asyncio.CancelledError):
            _reset(writer.transport)
        finally:
            writer.close()

    def chosen(self, operation: Operation) -> tuple[Fault | None, Seen]:
        """Choose the fault for the next request."""
        with self._lock:
            self._counted[operation.name] += 1
            chance = f"{self.seed} {operation.name} {self._counted[operation.name]}"
            wanted = (chooser.choose(operation, Random(chance)) for chooser in self._choosers)
            fault = next((fault for fault in wanted if fault), None)
            seen = Seen(len(self.log) + 1, operation, fault.name if fault else None, [])
            self.log.append(seen)
            return fault, seen

    def start_later(self, work: Callable[[], Coroutine[Any, Any, T]]) -> "asyncio.Task[T]":
        """Let ``work`` go on though the connection that it came by may end."""
        task = self._loop.create_task(work())
        self._later.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._later.discard(task)
        if not task.cancelled():
            task.exception()  # who waited for it has seen it, if anybody did


class _Exchange:
    """One request and what becomes of it."""

    operation: Operation
    request: Message

    def __init__(
        self, proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._seen: Seen | None = None
        self._open = True

    async def run(self) -> bool:
        """Pass one request on; True if the connection may be used for another one."""
        head = await read_head(self._reader)
        if head is None:
            return False
        self.operation = operation_of(head)
        fault: Fault | None = None
        if self.operation.protocol == "s3":
            fault, self._seen = self._proxy.chosen(self.operation)
        if (head.get("Expect") or "").lower() == "100-continue":
            if fault and fault.early:
                # The body was not sent, so nothing more can be read from this connection.
                self._open = False
                await fault.happen(self)
                return False
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        share = fault.reads if fault else 1.0
        self.request = Message(head, await read_body(self._reader, head, share=share))
        if self._seen is None:
            self.operation = operation_of(head, self.request.body)
            fault, self._seen = self._proxy.chosen(self.operation)
        if fault is None:
            await self.respond(await self.forward())
        else:
            await fault.happen(self)
        return self._open

    async def forward(self, request: Message | None = None) -> Message:
        # What is on its way goes on, and is witnessed, when the client's connection ends.
        sending = self._proxy.start_later(partial(self._forwarded, request or self.request))
        return await asyncio.shield(sending)

    async def _forwarded(self, sent: Message) -> Message:
        reader, writer = await asyncio.open_connection(*self._proxy.upstream, limit=LIMIT)
        try:
            writer.write(sent.to_bytes(close=True))
            answer = await read_answer(reader, sent.head.start.split(" ", 1)[0])
        finally:
            writer.close()
        assert self._seen is not None
        self._seen.statuses.append(answer.status)
        for witness in self._proxy.witnesses:
            witness(self.operation, sent, answer)
        return answer

    async def respond(self, answer: Message) -> None:
        self._writer.write(answer.to_bytes(close=not self._open))
        await self._writer.drain()

    async def respond_part(self, answer: Message, share: float) -> None:
        whole = answer.to_bytes()
        missing = int(len(answer.body) * (1 - share)) or 1
        self._writer.write(whole[:-missing])
        await self._writer.drain()
        self.hang_up()

    def hang_up(self) -> None:
        self._open = False
        self._writer.close()

    def reset(self) -> None:
        self._open = False
        _reset(self._writer.transport)

    def later(self, seconds: float, request: Message) -> None:
        async def deliver() -> None:
            await asyncio.sleep(seconds)
            with suppress(Broken, OSError):  # the service may be gone by then
                await self.forward(request)

        self._proxy.start_later(deliver)


def _reset(transport: asyncio.WriteTransport) -> None:
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def _turns() -> None:
    """Let the event loop run everything that is due."""
    for _ in range(3):
        await asyncio.sleep(0)


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
