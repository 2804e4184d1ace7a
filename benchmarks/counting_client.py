"""A client that counts and throws away: ``python -m benchmarks.counting_client ...``.

Prints JSON lines: {"at": seconds since 1970, ...}.
"""

import asyncio
import json
import sys
import time
from argparse import ArgumentParser, Namespace

import grpc
import structlog

from laredo_fanout.client import (
    Backoff,
    Changes,
    Endpoint,
    Handshake,
    SnapshotEnd,
    SnapshotRows,
    Subscription,
    SyncOptions,
)
from laredo_fanout.wire import replication_pb2 as wire
from laredo_fanout.wire import replication_pb2_grpc
from laredo_model import position


def tell(**facts: object) -> None:
    json.dump({"at": time.time(), **facts}, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()


async def snapshot(arguments: Namespace) -> None:
    """One snapshot in batches."""
    rows = size = 0
    options = SyncOptions(arguments.table, "bench-snapshot")
    async with Subscription(Endpoint(arguments.server), options) as events:
        tell(event="begin")
        async for event in events:
            if isinstance(event, SnapshotRows):
                rows += len(event.keys)
                size += sum(map(len, event.lines))
            elif isinstance(event, SnapshotEnd):
                tell(event="end", rows=rows, bytes=size)
                return


async def follow(arguments: Namespace) -> None:
    """Changes after a position, until so many came."""
    options = SyncOptions(
        arguments.table,
        "bench-follow",
        position=position.parse(arguments.position),
        history=position.parse_history(arguments.history),
    )
    backoff = Backoff(initial=0.05, maximum=0.1)
    changes = 0
    async with Subscription(Endpoint(arguments.server), options, backoff=backoff) as events:
        async for event in events:
            if isinstance(event, Handshake):
                tell(event="handshake", mode=event.mode.name)
            elif isinstance(event, Changes):
                if not changes:
                    tell(event="first")
                changes += len(event)
                if changes >= arguments.changes:
                    tell(event="last", changes=changes)
                    return


async def base(arguments: Namespace) -> None:
    """Rows of a snapshot over the base protocol, one message each."""
    schema, table = arguments.table.split(".")
    async with Endpoint(arguments.server).channel() as channel:
        stub = replication_pb2_grpc.LaredoReplicationServiceStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Sync(wire.SyncRequest(schema=schema, table=table, client_id="bench-base"))
        rows = size = 0
        async for message in call:
            if message.WhichOneof("message") == "snapshot_row":
                if not rows:
                    tell(event="begin")
                rows += 1
                size += message.ByteSize() if rows <= 1000 else 0
                if rows >= arguments.changes:
                    tell(event="end", rows=rows, message_bytes=size // min(rows, 1000))
                    break
        call.cancel()


async def base_follow(arguments: Namespace) -> None:
    """Changes after a position over the base protocol, a message each, until so many came."""
    schema, table = arguments.table.split(".")
    async with Endpoint(arguments.server).channel() as channel:
        stub = replication_pb2_grpc.LaredoReplicationServiceStub(channel)  # type: ignore[no-untyped-call]
        request = wire.SyncRequest(
            schema=schema,
            table=table,
            client_id="bench-base-follow",
            last_known_source_position=arguments.position,
        )
        call = stub.Sync(request)
        changes = 0
        async for message in call:
            match message.WhichOneof("message"):
                case "handshake":
                    tell(event="handshake", mode=message.handshake.mode)
                case "journal_entry":
                    changes += 1
                    if changes >= arguments.changes:
                        tell(event="last", changes=changes)
                        break
        call.cancel()


async def bare(arguments: Namespace) -> None:
    """Messages of a bare gRPC server."""
    async with Endpoint(arguments.server).channel() as channel:
        call = channel.unary_stream("/bench/Stream", None, None)(b"")
        messages = 0
        async for _ in call:
            if not messages:
                tell(event="begin")
            messages += 1
            if messages >= arguments.changes:
                tell(event="end", messages=messages)
                break
        call.cancel()


async def bare_server(arguments: Namespace) -> None:
    """Serve the same bytes again and again: the limit of grpcio alone."""
    payload = bytes(arguments.changes)

    async def stream(request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        while True:
            await context.write(payload)

    handler = grpc.unary_stream_rpc_method_handler(stream)
    server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("bench", {"Stream": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    tell(event="listening", port=port)
    await server.wait_for_termination()


if __name__ == "__main__":
    # What it prints on stdout is read by the benchmark.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    parser = ArgumentParser()
    parser.add_argument(
        "what", choices=["snapshot", "follow", "base", "base_follow", "bare", "bare_server"]
    )
    parser.add_argument("--server", default="")
    parser.add_argument("--table", default="")
    parser.add_argument("--position", default="")
    parser.add_argument("--history", default="")
    parser.add_argument("--changes", type=int, default=0)
    given = parser.parse_args()
    asyncio.run(globals()[given.what](given))
