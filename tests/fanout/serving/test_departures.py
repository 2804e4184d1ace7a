"""Clients that leave, or are let go, while a message waits for them: one line and a reason each."""

import asyncio
import struct
from pathlib import Path

import grpc
import pytest
from structlog.testing import capture_logs

from laredo_fanout.serving.endpoints import grpc as grpc_
from laredo_fanout.serving.options import ListenerOptions
from laredo_fanout.serving.service import SERVICE
from laredo_fanout.wire import replication_pb2 as wire
from tests.support.processes import PATIENCE_S, until
from tests.support.server.connect_client import sync_request
from tests.support.server.serving_world import World, line, rows, running

GRPC_LOG = "grpc._cython.cygrpc"
STATUS = wire.GetReplicationStatusRequest(schema="public", table="users")

# HTTP/2's frames, settings and flags (RFC 9113, 6 and 11.3).
DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS, ACK = 1, 4, 1
INITIAL_WINDOW_SIZE = 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def fields(**named: str) -> bytes:
    """A header block without compression (RFC 7541, 6.2.2)."""
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in named.items()
    )


def head(method: str) -> bytes:
    return fields(
        **{
            ":method": "POST",
            ":scheme": "http",
            ":path": f"/{method}" if "/" in method else f"/{SERVICE}/{method}",
            ":authority": "localhost",
            "content-type": "application/grpc",
            "te": "trailers",
        }
    )


async def call_with_no_window(world: World, method: str, request: bytes) -> asyncio.StreamWriter:
    """A call whose client's window for answers is empty; returns its connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(
        PREFACE
        + frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 0))
        + frame(HEADERS, END_HEADERS, 1, head(method))
        + frame(DATA, END_STREAM, 1, struct.pack(">BI", 0, len(request)) + request)
    )
    async with asyncio.timeout(PATIENCE_S):
        while (await answered(reader)) != HEADERS:
            pass
    return writer


async def answered(reader: asyncio.StreamReader) -> int:
    """The kind of the next frame that comes."""
    head = await reader.readexactly(9)
    await reader.readexactly(int.from_bytes(head[:3]))
    return head[3]


@pytest.mark.parametrize("method", ["Sync", "GetReplicationStatus", "grpc.health.v1.Health/Watch"])
@pytest.mark.parametrize(("request_s", "most"), [(PATIENCE_S, 10), (0.5, 1000)])
async def test_calls_whose_request_never_comes_are_few_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, request_s: float, most: int
) -> None:
    monkeypatch.setattr(grpc_, "REQUEST_S", request_s)
    monkeypatch.setattr(grpc_, "MOST_UNREAD", most)
    begun = [
        frame(HEADERS, END_HEADERS, stream, head(method))
        + frame(DATA, 0, stream, b"\0\0\0\0\x20begun")
        for stream in range(1, 401, 2)
    ]
    without = frame(HEADERS, END_HEADERS | END_STREAM, 401, head(method))
    async with running(tmp_path, users=3) as world:
        idle = len(asyncio.all_tasks())
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(PREFACE + frame(SETTINGS, 0, 0, b"") + b"".join(begun) + without)
        ending = max(len(begun) - most, 0) or len(begun)
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(ending + 1):
                while (await answered(reader)) != HEADERS:
                    pass
        # gRPC has two tasks for each call that is left.
        await until(lambda: len(asyncio.all_tasks()) <= idle + 2 * (len(begun) - ending))
        assert (await world.stub().GetReplicationStatus(STATUS)).current_sequence
        writer.close()


async def test_calls_whose_clients_leave_before_or_in_the_midst_of_a_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    request = sync_request(batch=True).SerializeToString()
    async with running(tmp_path, users=3) as world:
        for _ in range(10):
            (await call_with_no_window(world, "Sync", request)).close()
        await until(lambda: len(world.registry.closed) == 10)
        for _ in range(10):
            status = STATUS.SerializeToString()
            (await call_with_no_window(world, "GetReplicationStatus", status)).close()
        assert (await world.stub().GetReplicationStatus(STATUS)).current_sequence
    assert {reason for _, reason in world.registry.closed} == {"client"}
    assert errors_of_grpc(caplog) == []


def errors_of_grpc(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == GRPC_LOG]


async def test_a_defect_of_ours_is_still_an_error_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as world:
        monkeypatch.setattr(world.registry, "clients", None)
        world.writer.publish(rows(0, 3))
        with pytest.raises(grpc.aio.AioRpcError):
            await world.stub().GetReplicationStatus(STATUS)
    (record,) = [record for record in caplog.records if record.name == GRPC_LOG]
    assert record.exc_info and isinstance(record.exc_info[1], TypeError)


async def test_one_that_takes_nothing_is_a_line_with_its_own_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laredo_fanout.serving.endpoints.grpc.STUCK_S", 0.2)
    listener = ListenerOptions("127.0.0.1", 0, stall_timeout_s=0.5, drain_grace_s=0.2)
    with capture_logs() as logs:
        async with running(tmp_path, listener=listener) as world:
            world.writer.publish([line(number, "w" * 1_000_000) for number in range(20)])
            stuck = world.sync(batch=True)
            await stuck.next("handshake")
            await until(lambda: world.registry.closed)
    assert [reason for _, reason in world.registry.closed] == ["stalled"]
    ended = [entry for entry in logs if entry["event"] == "session ended"]
    assert [(entry["log_level"], entry["reason"]) for entry in ended] == [("info", "stalled")]
    assert "took no message for 0.5 s" in ended[0]["detail"]
    assert errors_of_grpc(caplog) == []
