"""The standard reflection service: how grpcurl and its like learn the messages of a server.

Its messages are those of v1alpha and of v1, which differ by the package alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import ReflectionServicer

from laredo_fanout.serving.calls.request import decode
from laredo_fanout.serving.errors import BadRequest, Draining, Stalled
from laredo_fanout.serving.probes.readiness import Readiness

_V1ALPHA = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name
REFLECTION = (_V1ALPHA, "grpc.reflection.v1.ServerReflection")
IDLE_S = 60.0
"""For the next request of a call."""
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
