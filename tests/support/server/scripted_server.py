"""A real gRPC server on loopback that plays a script, one list of messages per Sync call.

For what a healthy server rarely does on demand: ends in mid-transaction, a
base-only peer, GoAway, refusals. Tests of the whole path use the real server.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from laredo_fanout.client import Endpoint
from laredo_fanout.client.stream.endpoint import TransportName
from laredo_fanout.wire import replication_pb2 as wire
from laredo_fanout.wire import replication_pb2_grpc
from tests.support.server.scripted_connect import Aborted, playing_connect

COLUMNS = (
    wire.ColumnDefinition(
        ordinal_position=1,
        column_name="id",
        data_type="int8",
        not_null=True,
        is_primary_key=True,
        primary_key_ordinal=1,
        type_modifier=-1,
    ),
    wire.ColumnDefinition(
        ordinal_position=2, column_name="name", data_type="text", type_modifier=-1
    ),
)
by_transport: TransportName = "grpc"
"""A test that holds for both sets it."""
HISTORY = "7300000000000000001:1:16384"


class Hold:
    """A script's step: keep the stream open until the client leaves."""


@dataclass(frozen=True)
class End:
    """A script's step: end the stream with this status."""

    code: grpc.StatusCode
    details: str = "as scripted"


@dataclass(frozen=True)
class When:
    """A script's step: send the next one when this holds."""

    condition: Callable[[], bool]


Step = wire.SyncResponse | bytes | Hold | End | When
"""Bytes are sent as they are, in a message's place."""
Script = Sequence[Step]


@dataclass
class Scripted(replication_pb2_grpc.LaredoReplicationServiceServicer):
    """Plays the scripts in turn, the last one again and again; notes each request."""

    scripts: Sequence[Script]
    requests: list[wire.SyncRequest] = field(default_factory=list)
    metadata: list[dict[str, str]] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    status: wire.GetReplicationStatusResponse | bytes | None = None
    """The answer to each GetReplicationStatus."""

    async def Sync(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
        try:
            async for message in self.play(request, dict(context.invocation_metadata())):
                yield message
        except Aborted as aborted:
            await context.abort(aborted.code, str(aborted))

    async def GetReplicationStatus(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
        if self.status is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not scripted")
        return self.status

    async def play(
        self, request: wire.SyncRequest, metadata: dict[str, str]
    ) -> AsyncIterator[wire.SyncResponse]:
        """The messages of the next script."""
        script = self.scripts[min(len(self.requests), len(self.scripts) - 1)]
        self.requests.append(request)
        self.metadata.append(metadata)
        for step in script:
            if isinstance(step, Hold):
                try:
                    await asyncio.Event().wait()
                finally:
                    self.left.set()
            elif isinstance(step, When):
                while not step.condition():
                    await asyncio.sleep(0.01)  # poll
            elif isinstance(step, End):
                raise Aborted(step.code, step.details)
            else:
                yield step


@asynccontextmanager
async def playing(
    *scripts: Script, credentials: grpc.ServerCredentials | None = None
) -> AsyncIterator[tuple[Endpoint, Scripted]]:
    """The server, by the transport that :data:`by_transport` names."""
    scripted = Scripted(scripts)
    if by_transport == "connect":
        async with playing_connect(scripted.play) as port:
            yield Endpoint(f"127.0.0.1:{port}", transport="connect"), scripted
        return
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_handlers(scripted),))
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield Endpoint(f"127.0.0.1:{port}"), scripted
    finally:
        await server.stop(0)


def _handlers(scripted: Scripted) -> grpc.GenericRpcHandler:
    """As the generated code registers them, but for messages that are bytes already."""

    def as_bytes(message: wire.SyncResponse | bytes) -> bytes:
        return message if isinstance(message, bytes) else message.SerializeToString()

    return grpc.method_handlers_generic_handler(
        wire.DESCRIPTOR.services_by_name["LaredoReplicationService"].full_name,
        {
            "Sync": grpc.unary_stream_rpc_method_handler(
                scripted.Sync, wire.SyncRequest.FromString, as_bytes
            ),
            "GetReplicationStatus": grpc.unary_unary_rpc_method_handler(
                scripted.GetReplicationStatus,
                wire.GetReplicationStatusRequest.FromString,
                as_bytes,
            ),
        },
    )


def handshake(
    mode: str = "FULL_SNAPSHOT", *, batches: bool = True, history: str = HISTORY, current: int = 0
) -> wire.SyncResponse:
    return wire.SyncResponse(
        handshake=wire.SyncHandshake(
            mode=f"SYNC_MODE_{mode}",  # type: ignore[arg-type]
            columns=COLUMNS,
            history=history if batches else "",
            server_current_sequence=current,
            capabilities=["batch/json.v1"] if batches else [],
        )
    )


def snapshot(rows: dict[bytes, bytes], position: str, sequence: int) -> list[wire.SyncResponse]:
    return [
        wire.SyncResponse(
            snapshot_begin=wire.SnapshotBegin(
                snapshot_id="s", sequence=sequence, row_count=len(rows), source_position=position
            )
        ),
        wire.SyncResponse(
            snapshot_batch=wire.SnapshotBatch(keys=list(rows), lines=list(rows.values()))
        ),
        wire.SyncResponse(
            snapshot_end=wire.SnapshotEnd(
                sequence=sequence, rows_sent=len(rows), source_position=position
            )
        ),
    ]


Row = tuple[int, bytes, bytes]  # action, key, line


def batch(
    first_sequence: int, *transactions: tuple[int, Sequence[Row]], goes_on: bool = False
) -> wire.SyncResponse:
    rows = [row for _, changes in transactions for row in changes]
    return wire.SyncResponse(
        change_batch=wire.ChangeBatch(
            first_sequence=first_sequence,
            actions=bytes(action for action, _, _ in rows),
            keys=[key for _, key, _ in rows],
            lines=[line for _, _, line in rows],
            counts=[len(changes) for _, changes in transactions],
            positions=[position for position, _ in transactions],
            times_us=[position * 1000 for position, _ in transactions],
            open=goes_on,
        )
    )


def heartbeat(sequence: int, position: str = "") -> wire.SyncResponse:
    return wire.SyncResponse(
        heartbeat=wire.Heartbeat(current_sequence=sequence, source_position=position)
    )


def go_away(deadline_ms: int) -> wire.SyncResponse:
    return wire.SyncResponse(
        go_away=wire.GoAway(reason="drain", drain_deadline_unix_ms=deadline_ms)
    )


def line(number: int, name: str) -> bytes:
    return f'{{"id":{number},"name":"{name}"}}'.encode()
