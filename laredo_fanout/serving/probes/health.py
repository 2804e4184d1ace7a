"""The standard health service, grpc.health.v1: what a load balancer or a probe asks.

It answers without a token, with one of two words, as /health/ready does where it is public: whether
new streams are served. It knows the server as a whole and the replication service, and no tables.
"""

from __future__ import annotations

import asyncio

from grpc_health.v1 import health_pb2

from laredo_fanout.serving.calls.caller import Caller
from laredo_fanout.serving.calls.exchange import Exchange
from laredo_fanout.serving.calls.request import decode
from laredo_fanout.serving.errors import Draining, NotServed
from laredo_fanout.serving.probes.readiness import Readiness

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
