"""Readiness, and the standard services of health and reflection that report it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import ReflectionServicer

from laredo_fanout.serving.call import Caller, Exchange, decode
from laredo_fanout.serving.errors import BadRequest, Draining, Full, NotServed, Stalled


class Readiness:
    """Readiness as in /health/ready; never ready while the server drains.

    Calls that wait for it are few (`most_calls`), and leave when the server drains.
    """

    def __init__(self, *, ready: bool = False, most_calls: int = 1000) -> None:
        self.draining = False
        self._ready = ready
        self._most_calls = most_calls
        self._calls = 0
        self._changed: asyncio.Future[None] | None = None
        self._left = asyncio.Event()
        self._left.set()

    @property
    def serving(self) -> bool:
        """True if new streams are served."""
        return self._ready and not self.draining

    @property
    def waited_for(self) -> bool:
        """True if calls wait for it."""
        return self._calls > 0

    def update(self, *, ready: bool) -> None:
        """Note the state of /health/ready now."""
        self._ready = ready
        self._notify()

    async def drain(self, patience_s: float) -> None:
        """Report not ready from now on; returns when the calls that wait have sent it and left."""
        self.draining = True
        self._notify()
        try:
            await asyncio.wait_for(self._left.wait(), patience_s)
        except TimeoutError:
            # A client that takes no message learns it from the end of the connection.
            return

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A call that waits for changes.

        :raises Full: there are too many.
        """
        if self._calls >= self._most_calls:
            raise Full(f"{self._calls} calls watch this server's health already; try again later")
        self._calls += 1
        self._left.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._left.set()

    def changed(self) -> asyncio.Future[None]:
        """The future that the next change resolves; wait for it without cancelling it."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    def _notify(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set_result(None)


# The standard health service, grpc.health.v1: what a load balancer or a probe asks.
#
# It answers without a token, with one of two words, as /health/ready does where it is public:
# whether new streams are served. It knows the server as a whole and the replication service, and no
# tables.

HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_STATUS = health_pb2.HealthCheckResponse
_NAME_SHOWN = 80


class Health:
    """Answers grpc.health.v1's calls; requests and responses are bytes."""

    def __init__(self, readiness: Readiness, service: str) -> None:
        self._readiness = readiness
        self._names = ("", service)

    async def check(self, request: bytes, caller: Caller) -> bytes:
        """Answer whether the server serves now.

        :raises NotServed: it has no such service.
        """
        name = decode(health_pb2.HealthCheckRequest, request).service
        if name not in self._names:
            known = ", ".join(f'"{each}"' for each in self._names)
            raise NotServed(f'there is no service "{name[:_NAME_SHOWN]}"; known services: {known}')
        return self._response(name)

    async def watch(self, request: bytes, exchange: Exchange) -> None:
        """Send whether the server serves, now and at each change, until it drains.

        :raises Full: too many calls watch it.
        :raises Draining: the server drains; its last message was NOT_SERVING.
        """
        name = decode(health_pb2.HealthCheckRequest, request).service
        with self._readiness.waiting():
            sent = b""
            while True:
                changed, now = self._readiness.changed(), self._response(name)
                if now != sent:
                    await exchange.send(now)
                    sent = now
                    continue
                if self._readiness.draining:
                    raise Draining("the server is draining: connect elsewhere")
                await asyncio.wait([changed])

    def _response(self, name: str) -> bytes:
        if name not in self._names:
            status = _STATUS.SERVICE_UNKNOWN
        else:
            status = _STATUS.SERVING if self._readiness.serving else _STATUS.NOT_SERVING
        return bytes(_STATUS(status=status).SerializeToString())


# The standard reflection service: how grpcurl and its like learn the messages of a server.
#
# Its messages are those of v1alpha and of v1, which differ by the package alone.

_V1ALPHA = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name
REFLECTION = (_V1ALPHA, "grpc.reflection.v1.ServerReflection")
IDLE_S = 60.0
"""Longest wait for the next request of a call, in seconds."""
_MOST_REQUESTS = 1000


class Reflection:
    """Answers the calls of the reflection service; requests and responses are bytes."""

    def __init__(self, readiness: Readiness, services: Sequence[str]) -> None:
        self._readiness = readiness
        self._servicer: Any = ReflectionServicer([*services, *REFLECTION[:1]])

    async def answer(self, context: Any) -> None:
        """Answer each request of the call, until its caller ends it or it lasts too long.

        :raises Full: too many calls wait.
        :raises Stalled: the next request didn't come in time.
        :raises Draining: the server drains.
        :raises BadRequest: a request can't be decoded, or there were too many.
        """
        with self._readiness.waiting():
            for _ in range(_MOST_REQUESTS):
                request = await self._next(context)
                if request is grpc.aio.EOF:  # type: ignore[attr-defined]
                    return
                asked = decode(reflection_pb2.ServerReflectionRequest, request)
                for found in self._servicer.ServerReflectionInfo(iter([asked]), context):
                    await context.write(found.SerializeToString())
        raise BadRequest(f"a reflection call takes {_MOST_REQUESTS} requests: begin another one")

    async def _next(self, context: Any) -> Any:
        """The next request, or gRPC's EOF."""
        reading = asyncio.ensure_future(context.read())
        loop = asyncio.get_running_loop()
        deadline = loop.time() + IDLE_S
        try:
            while not reading.done():
                if self._readiness.draining:
                    raise Draining("the server is draining: connect elsewhere")
                changed = self._readiness.changed()
                left = deadline - loop.time()
                if left <= 0:
                    raise Stalled(f"no request of this reflection call came for {IDLE_S:g} s")
                await asyncio.wait(
                    [reading, changed], timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
            return reading.result()
        finally:
            reading.cancel()
