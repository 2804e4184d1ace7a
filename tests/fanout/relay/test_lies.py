"""Relays and clients outlive an upstream that lies, and are right again with an honest one."""

import inspect
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import timestamp_pb2

from laredo_fanout.client import AsyncFanoutClient, FanoutClient
from laredo_fanout.client.errors import ProtocolViolation, StreamError
from laredo_fanout.client.events import Handshake, HolderState, Mode
from laredo_fanout.client.stream.endpoint import Endpoint
from laredo_fanout.client.stream.stream import served_tables
from laredo_fanout.postgres.connections import SourceError
from laredo_fanout.relay import ingest, path, received_table, session
from laredo_fanout.relay.path import RelayOptions
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model.checksum import StateChecksum
from laredo_service.retry import Backoff
from tests.support import drawn
from tests.support.processes import until
from tests.support.server.lies import Lie, altered, lies
from tests.support.server.relayed import relaying
from tests.support.server.scripted_server import (
    HISTORY,
    End,
    Hold,
    Script,
    Scripted,
    batch,
    handshake,
    heartbeat,
    line,
    playing,
    snapshot,
)

TABLE = "public.users"
RIGHT = {b"1": line(1, "one"), b"2": line(2, "two")}
SOON = Backoff(initial=0.001, maximum=0.002)
PARTS = 32
in_parts = pytest.mark.parametrize("part", drawn.first(1, range(PARTS)))
CUT = End(grpc.StatusCode.UNAVAILABLE)
CAPABILITIES = ["batch/json.v1", "boundary.v1", "relay.v1"]


def greeting(mode: str) -> wire.SyncResponse:
    message = handshake(mode, current=9)
    sent = message.handshake
    sent.ClearField("capabilities")
    sent.capabilities.extend(CAPABILITIES)
    sent.source_position, sent.boundary_position, sent.history_since = "0/40", "0/10", "0/1"
    sent.ancestors.add(history="7300000000000000001:0:16384", until="0/8")
    sent.journal_oldest_sequence, sent.resume_from_sequence = 1, 6
    return message


def whole(rows: dict[bytes, bytes], position: str = "0/20") -> list[wire.SyncResponse]:
    begin, rows_sent, end = snapshot(rows, position, 5)
    checksum = StateChecksum()
    checksum.add(list(rows.values()))
    end.snapshot_end.state_checksum, end.snapshot_end.rows = checksum.hex(), len(rows)
    end.snapshot_end.boundary_position = "0/18"
    return [begin, rows_sent, end]


def beat(position: str) -> wire.SyncResponse:
    message = heartbeat(8, position)
    message.heartbeat.boundary_position = position
    message.heartbeat.server_time.CopyFrom(timestamp_pb2.Timestamp(seconds=1_800_000_000))
    return message


CHANGES = [
    (batch(6, (0x28, [(1, b"3", line(3, "x"))]), (0x30, [(2, b"1", line(1, "y"))]), goes_on=True)),
    (batch(8, (0x30, [(3, b"2", b""), (4, b"", b""), (1, b"4", line(4, "z"))]))),
    beat("0/38"),
]
AWAY = wire.SyncResponse(
    go_away=wire.GoAway(reason="drain", drain_deadline_unix_ms=1_800_000_000_000)
)
COLUMNS_CHANGE = wire.SyncResponse(
    schema_change=wire.SchemaChangeNotification(
        sequence=9,
        old_columns=handshake().handshake.columns,
        new_columns=handshake().handshake.columns,
    )
)
STREAMS = (
    [greeting("FULL_SNAPSHOT"), *whole({b"1": line(1, "old"), b"9": line(9, "o")}), *CHANGES],
    [greeting("DELTA"), *CHANGES],
    [greeting("FULL_SNAPSHOT"), *whole(RIGHT), COLUMNS_CHANGE, *whole(RIGHT), AWAY],
)
HONEST = [greeting("FULL_SNAPSHOT"), *whole(RIGHT), beat("0/20")]


def told(part: int, *, of_columns: bool = True) -> list[Lie]:
    """Every thirty-second lie."""
    found = [each for stream in STREAMS for each in lies(stream)]
    return [each for each in found if of_columns or "columns" not in each.name][part::PARTS]


def disconnecting(server: Scripted) -> int:
    """Number of scripts that don't end with a GoAway of the server."""
    return sum(
        not any(isinstance(step, wire.SyncResponse) and step.HasField("go_away") for step in script)
        for script in server.scripts[:-1]
    )


def scripts(told: list[Lie]) -> list[Script]:
    """Each lie to one who has the right rows; then the truth, for good."""
    found: list[Script] = []
    for each in told:
        found += [[*HONEST, CUT], [*each.script, CUT]]
    return [*found, [*HONEST, Hold()]]


def status() -> wire.GetReplicationStatusResponse:
    answer = wire.GetReplicationStatusResponse(tables=[TABLE])
    answer.path.add(server_id="one", address="a:1", source_position="0/40", delay_us=1000)
    answer.path.add(server_id="two", address="b:1", source_position="0/41", delay_us=1000)
    return answer


def over(server: Scripted, error: object) -> bool:
    """True if all scripts were played; ``error`` is the one that ended the client for good."""
    number = len(server.requests)
    assert error is None, f"script {number} of {len(server.scripts)}: {server.scripts[number - 1]}"
    return number >= len(server.scripts)


@in_parts
@pytest.mark.parametrize("kind", drawn.first(1, [AsyncFanoutClient, FanoutClient]))
async def test_clients_outlive_lies(
    kind: type[AsyncFanoutClient] | type[FanoutClient], part: int
) -> None:
    # Columns that an index needs and that aren't there are the caller's own mistake.
    indexed = kind is AsyncFanoutClient
    async with playing(*scripts(told(part, of_columns=not indexed))) as (endpoint, server):
        client: Any = kind(
            endpoint.server,
            TABLE,
            indexes={"by_name": ["name"]} if indexed else None,
            lookup_fields=["name"] if indexed else None,
            backoff=SOON,
        )
        changes: list[object] = []
        for call in (client.start(), client.listen(lambda old, new: changes.append((old, new)))):
            if inspect.isawaitable(call):
                await call
        try:
            await until(lambda: over(server, client.error))
            await until(lambda: client.position == 0x20 and rows_of(client) == RIGHT)
            assert client.disconnects >= disconnecting(server)
            assert client.listener_errors == 0 < len(changes)
        finally:
            if inspect.isawaitable(stopping := client.stop()):
                await stopping


def rows_of(client: Any) -> dict[bytes, bytes]:
    return {key: line for part in client._replica.parts for key, line in part.items()}


@in_parts
async def test_a_relay_outlives_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    for module in (ingest, session):
        monkeypatch.setattr(module, "_RETRY", SOON)
    monkeypatch.setattr(session, "_LEAVING", SOON)
    async with playing(*scripts(told(part))) as (endpoint, server):
        server.status = status()
        port = int(endpoint.server.rpartition(":")[2])
        async with relaying(tmp_path, port, [TABLE]) as relay:
            await until(lambda: over(server, relay.error))

            def right() -> bool:
                assert relay.error is None, relay.error
                shown = [r for r in relay.store.tables.values() if r.live]
                # Up to the handshake's position the upstream may have verified it.
                at = [(r.position, 0x20 <= r.verified <= 0x40) for r in shown]
                return at == [(0x20, True)]

            await until(right)
            with relay.store.reader().snapshot(relay.record(TABLE).id) as found:
                held = {k: v for ks, vs in found.batches() for k, v in zip(ks, vs, strict=True)}
            assert held == RIGHT
            assert relay.store.position == 0x20
            assert relay.ingest.status().reconnects >= disconnecting(server)
            assert str(relay.store.source.history) == HISTORY


@pytest.mark.parametrize("state", [b"\xff", b"[]", b"{}", b'{"history": 1}'])
def test_a_lie_about_the_holder_is_a_violation(state: bytes) -> None:
    holder = HolderState(1, b"{}", state)
    greeting = Handshake(Mode.DELTA, None, None, (), 0, 0, 1, "", True, holder=holder)
    with pytest.raises(ProtocolViolation, match="holder's state"):
        received_table.of_upstream(greeting, "peer:4002", None)


async def test_lies_about_the_path_and_the_tables_are_refused() -> None:
    async with playing([Hold()]) as (endpoint, server):
        for _, answer in [("bytes", b"\xff\xff\xff"), *altered(status())]:
            server.status = answer
            with suppress(SourceError):
                found = await path.ask(RelayOptions(endpoint.server, "relay"), TABLE, "me")
                wire.GetReplicationStatusResponse.FromString(found.to_bytes())
            with suppress(StreamError):
                await served_tables(Endpoint(endpoint.server))
