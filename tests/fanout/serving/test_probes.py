"""Health and reflection on the gRPC port, for probes, load balancers and tools."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from laredo_fanout.serving.endpoints import probes
from laredo_fanout.serving.endpoints.probes import Readiness
from laredo_fanout.serving.options import ListenerOptions
from laredo_fanout.serving.service import SERVICE
from tests.support.processes import PATIENCE_S
from tests.support.server.serving_world import Stream, World, running, with_tokens

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
Code = grpc.StatusCode
SECRET = (("authorization", "Bearer secret"),)
TOKENS = "secret public.users\n"


def health(world: World) -> Any:
    return health_pb2_grpc.HealthStub(world.channel())


async def check(world: World, service: str = "") -> int:
    answer = await health(world).Check(health_pb2.HealthCheckRequest(service=service))
    return answer.status


def watch(world: World, service: str = "") -> Any:
    return health(world).Watch(health_pb2.HealthCheckRequest(service=service))


async def next_status(call: Any) -> int:
    answer = await asyncio.wait_for(call.read(), PATIENCE_S)
    return answer.status


async def end_of(call: Any) -> grpc.StatusCode:
    """Read to the end."""
    code, _ = await Stream(call).ends()
    return code


async def test_health_is_what_ready_says_without_a_token(tmp_path: Path) -> None:
    listener, readiness = with_tokens(tmp_path / "tokens", TOKENS), Readiness()
    async with running(tmp_path, listener=listener, readiness=readiness) as world:
        watched = watch(world, SERVICE)
        assert await next_status(watched) == NOT_SERVING
        for ready, status in ((True, SERVING), (False, NOT_SERVING), (True, SERVING)):
            readiness.update(ready=ready)
            assert await check(world) == await check(world, SERVICE) == status
            assert await next_status(watched) == status
        # It says nothing of tables, nor of what else there may be.
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await check(world, "public.users")
        assert unknown.value.code() is Code.NOT_FOUND
        assert await next_status(watch(world, "public.users")) == UNKNOWN
        with pytest.raises(grpc.aio.AioRpcError) as wrong:
            await world.channel().unary_unary("/grpc.health.v1.Health/Check")(b"\xff\xff")
        assert wrong.value.code() is Code.INVALID_ARGUMENT


async def test_a_drain_is_known_before_go_away(tmp_path: Path) -> None:
    readiness = Readiness(ready=True)
    async with running(tmp_path, readiness=readiness, users=3) as world:
        stream = await world.greeted()
        await stream.base_snapshot()
        watched = watch(world)
        assert await next_status(watched) == SERVING
        world.drain.set()
        await stream.next("go_away")
        assert not readiness.serving and not readiness.waited_for
        assert await next_status(watched) == NOT_SERVING
        # The watch is over, too: nobody waits for the drain's deadline because of it.
        assert await end_of(watched) is Code.UNAVAILABLE


async def test_a_drain_does_not_wait_for_those_who_only_watch(tmp_path: Path) -> None:
    listener = ListenerOptions("127.0.0.1", 0, drain_grace_s=3600)
    async with running(tmp_path, listener=listener) as world:
        watched = watch(world)
        assert await next_status(watched) == SERVING
        tool = reflect(world.channel())
        assert await names(tool)
        world.drain.set()
        await asyncio.wait_for(asyncio.shield(world.serving), PATIENCE_S)


async def test_those_who_wait_are_counted(tmp_path: Path) -> None:
    async with running(tmp_path, readiness=Readiness(ready=True, most_calls=2)) as world:
        first, second = watch(world), watch(world)
        assert await next_status(first) == await next_status(second) == SERVING
        assert await end_of(watch(world)) is Code.RESOURCE_EXHAUSTED
        assert await end_of(reflect(world.channel())) is Code.RESOURCE_EXHAUSTED
        assert await check(world) == SERVING
        first.cancel()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                third = watch(world)
                try:
                    if await next_status(third) == SERVING:
                        break
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.01)  # poll


# -------------------------------------------------------------------- reflection


def reflect(channel: grpc.aio.Channel, version: str = "v1alpha", metadata: Any = None) -> Any:
    """A call of the reflection service."""
    return channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )(metadata=metadata)


async def names(call: Any) -> list[str]:
    await call.write(reflection_pb2.ServerReflectionRequest(list_services="*"))
    answer = await asyncio.wait_for(call.read(), PATIENCE_S)
    return [each.name for each in answer.list_services_response.service]


async def test_a_tool_that_knows_nothing_calls_the_service(tmp_path: Path) -> None:
    """As grpcurl does: by the descriptors that the server gives it."""
    async with running(tmp_path, users=3) as world:

        def found() -> Any:
            with grpc.insecure_channel(world.address) as channel:
                database = ProtoReflectionDescriptorDatabase(channel)
                assert SERVICE in database.get_services()
                return DescriptorPool(database).FindServiceByName(SERVICE)

        service = await asyncio.to_thread(found)
        assert {method.name for method in service.methods} == {
            "Sync", "ListSnapshots", "FetchSnapshot", "GetReplicationStatus",
        }  # fmt: skip
        fields = service.methods_by_name["Sync"].input_type.fields_by_name
        assert fields["last_known_sequence"].number == 3


@pytest.mark.parametrize("version", ["v1alpha", "v1"])
async def test_reflection_is_behind_the_token(tmp_path: Path, version: str) -> None:
    async with running(tmp_path, listener=with_tokens(tmp_path / "tokens", TOKENS)) as world:
        channel = world.channel()
        assert await end_of(reflect(channel, version)) is Code.UNAUTHENTICATED
        wrong = (("authorization", "Bearer wrong"),)
        assert await end_of(reflect(channel, version, wrong)) is Code.UNAUTHENTICATED
        call = reflect(channel, version, SECRET)
        assert await names(call) == [
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
            SERVICE,
        ]
        await call.done_writing()
        assert await end_of(call) is Code.OK


async def test_a_reflection_call_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "IDLE_S", 0.2)
    async with running(tmp_path) as world:
        channel = world.channel()
        idle = reflect(channel)
        assert await names(idle)
        assert await end_of(idle) is Code.RESOURCE_EXHAUSTED

        monkeypatch.setattr(probes, "IDLE_S", PATIENCE_S)
        busy = reflect(channel)
        for _ in range(1000):
            await names(busy)
        assert await end_of(busy) is Code.INVALID_ARGUMENT
        garbage = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        assert await end_of(garbage(iter([b"\xff\xff"]))) is Code.INVALID_ARGUMENT
