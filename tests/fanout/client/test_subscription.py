"""Streams and subscriptions against scripted servers: what arrives, and where they resume."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import grpc
import pytest
from google.protobuf import struct_pb2, timestamp_pb2

from laredo_fanout.client import (
    Backoff,
    Changes,
    Crowded,
    Endpoint,
    Event,
    GaveUp,
    GoAway,
    Handshake,
    Heartbeat,
    InvalidRequest,
    Observer,
    PermissionDenied,
    ProtocolViolation,
    ServerUnavailable,
    SnapshotEnd,
    SnapshotRows,
    StreamError,
    Subscription,
    SyncOptions,
    TableNotFound,
    TableNotReady,
    Unauthenticated,
    equals,
    is_in,
    open_stream,
    prefix,
)
from laredo_fanout.client.stream.endpoint import TransportName
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import position as position_
from laredo_model.position import Position
from tests.fanout.client.scripted_replica import CUT, insert
from tests.support.processes import PATIENCE_S
from tests.support.server.scripted_server import (
    HISTORY,
    End,
    Hold,
    Script,
    batch,
    go_away,
    handshake,
    heartbeat,
    line,
    playing,
    snapshot,
)
from tests.support.server.stuck_proxy import Proxy

QUICK = Backoff(initial=0.001, maximum=0.01)
OPTIONS = SyncOptions("public.users", "test-client")


pytestmark = pytest.mark.usefixtures("transport")


async def events_of(*script: object, options: SyncOptions = OPTIONS) -> list[Event]:
    async with (
        playing(script) as (endpoint, _),  # type: ignore[arg-type]
        open_stream(endpoint, options) as stream,
    ):
        return [event async for event in stream]


async def take(subscription: Subscription, many: int) -> list[Event]:
    async with asyncio.timeout(PATIENCE_S), subscription as stream:
        found: list[Event] = []
        async for event in stream:
            found.append(event)
            if len(found) == many:
                # asked for once more, so that the last event counts as consumed
                waiting = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0)
                while subscription.position is None:
                    await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises((asyncio.CancelledError, StopAsyncIteration)):
                    await waiting
                return found
    raise AssertionError("the subscription ended")


async def test_request_carries_everything_that_was_asked_for() -> None:
    options = SyncOptions(
        "public.users",
        "me",
        position=Position(0x1_0000_00FF),
        history=position_.parse_history(HISTORY),
        sequence=41,
        filters=(equals("id", 7), prefix("name", "a"), is_in("name", ["x", "y"])),
        want_old=True,
    )
    async with playing([handshake("DELTA")]) as (endpoint, server):
        secured = replace(endpoint, token="s3cret")
        async with open_stream(secured, options) as stream:
            async for _ in stream:
                pass
    request = server.requests[0]
    assert (request.schema, request.table, request.client_id) == ("public", "users", "me")
    assert request.last_known_source_position == "1/FF"
    assert request.history == HISTORY
    assert request.last_known_sequence == 41
    assert request.capabilities == ["batch/json.v1"]
    assert request.want_old
    assert [condition.WhichOneof("match") for condition in request.filters] == [
        "equals",
        "prefix",
        "in",
    ]
    assert server.metadata[0]["authorization"] == "Bearer s3cret"


def test_token_is_not_in_the_endpoint_s_text() -> None:
    assert "s3cret" not in repr(Endpoint("localhost:1", token="s3cret"))


async def test_batches_arrive_as_they_were_sent() -> None:
    found = await events_of(
        handshake(),
        *snapshot({b"1": line(1, "a"), b"2": line(2, "b")}, "0/10", 5),
        batch(6, (0x20, [(2, b"1", line(1, "z")), (3, b"2", b"")]), (0x30, [(4, b"", b"")])),
        heartbeat(8, "0/40"),
    )
    greeting, _, rows, end, changes, beat = found
    assert isinstance(greeting, Handshake)
    assert greeting.batches and greeting.snapshot_follows
    assert str(greeting.history) == HISTORY
    assert [column.name for column in greeting.columns] == ["id", "name"]
    assert [column.key_ordinal for column in greeting.columns] == [1, None]
    assert rows == SnapshotRows([b"1", b"2"], [line(1, "a"), line(2, "b")])
    assert isinstance(end, SnapshotEnd) and end.position == 0x10
    assert end.rows is None and end.state_checksum is None
    assert isinstance(changes, Changes)
    assert changes.actions == b"\x02\x03\x04"
    assert [part[:4] for part in changes.transactions()] == [(32, 32000, 0, 2), (48, 48000, 2, 3)]
    assert all(part.last for part in changes.transactions())
    assert changes.last_sequence == 8
    assert isinstance(beat, Heartbeat) and beat.position == 0x40
    # An empty text is a key, and the end tells rows and checksum if the server does.
    begin, rows_, told = snapshot({b"": b'{"title":""}'}, "0/10", 1)
    told.snapshot_end.rows, told.snapshot_end.state_checksum = 3, "ab" * 16
    *_, rows, end = await events_of(handshake(), begin, rows_, told)
    assert rows == SnapshotRows([b""], [b'{"title":""}'])
    assert isinstance(end, SnapshotEnd)
    assert (end.rows, end.state_checksum) == (3, "ab" * 16)


async def test_the_end_of_a_catch_up_without_rows_is_no_snapshot() -> None:
    end = wire.SyncResponse(snapshot_end=wire.SnapshotEnd(sequence=7))
    found = await events_of(handshake("DELTA", batches=False), end)
    assert found[1:] == [Heartbeat(None, 7, None)]


def changed(**columns: list[object]) -> wire.SyncResponse:
    """One change, and what is said of it otherwise."""
    one = {"keys": [b"1"], "lines": [b"{}"], "counts": [1], "positions": [1], "times_us": [1]}
    return wire.SyncResponse(change_batch=wire.ChangeBatch(actions=b"\x01", **{**one, **columns}))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ([handshake("DELTA"), changed(lines=[], times_us=[])], "differ in length"),
        ([handshake("DELTA"), changed(counts=[2])], "differ in length"),
        ([handshake("DELTA"), changed(positions=[])], "differ in length"),
        ([heartbeat(1)], "before the handshake"),
        ([handshake(), heartbeat(1, "nonsense")], "not a WAL position"),
    ],
)
async def test_what_is_no_stream_is_refused(script: list[wire.SyncResponse], said: str) -> None:
    with pytest.raises(ProtocolViolation, match=said):
        await events_of(*script)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequest),
        (grpc.StatusCode.NOT_FOUND, TableNotFound),
        (grpc.StatusCode.UNAUTHENTICATED, Unauthenticated),
        (grpc.StatusCode.PERMISSION_DENIED, PermissionDenied),
        (grpc.StatusCode.UNAVAILABLE, ServerUnavailable),
        (grpc.StatusCode.FAILED_PRECONDITION, TableNotReady),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Crowded),
    ],
)
async def test_status_becomes_an_error_with_the_server_s_words(
    code: grpc.StatusCode, kind: type[StreamError]
) -> None:
    with pytest.raises(kind, match="the reason"):
        await events_of(End(code, "the reason"))


async def test_nobody_there_is_unavailable_and_names_the_address(transport: TransportName) -> None:
    with pytest.raises(ServerUnavailable, match=r"127\.0\.0\.1:1"):
        async with open_stream(Endpoint("127.0.0.1:1", transport=transport), OPTIONS) as stream:
            async for _ in stream:
                pass


async def test_leaving_the_block_ends_the_call_at_the_server() -> None:
    async with playing([handshake("DELTA"), Hold()]) as (endpoint, server):
        async with open_stream(endpoint, OPTIONS) as stream:
            await anext(stream)
        async with asyncio.timeout(PATIENCE_S):
            await server.left.wait()


def base_entry(
    sequence: int, position: str, action: str, old: dict[str, object], new: dict[str, object]
) -> wire.SyncResponse:
    entry = wire.ReplicationJournalEntry(
        sequence=sequence,
        source_position=position,
        action=action,
        timestamp=timestamp_pb2.Timestamp(seconds=2, nanos=5000),
    )
    if old:
        entry.old_values.update(old)
    if new:
        entry.new_values.update(new)
    return wire.SyncResponse(journal_entry=entry)


async def test_base_form_gives_the_same_events() -> None:
    rows = [
        {"id": 1, "name": "a"},
        {"id": "9223372036854775807", "name": 'qu"ote'},
        {"id": 3, "name": None},
    ]
    messages = []
    for row in rows:
        struct = struct_pb2.Struct()
        struct.update(row)
        messages.append(wire.SyncResponse(snapshot_row=wire.SnapshotRow(row=struct)))
    found = await events_of(
        handshake(batches=False),
        wire.SyncResponse(snapshot_begin=wire.SnapshotBegin(sequence=9, row_count=3)),
        *messages,
        wire.SyncResponse(snapshot_end=wire.SnapshotEnd(sequence=9, rows_sent=3)),
        base_entry(10, "0/20", "INSERT", {}, {"id": 4, "name": "d"}),
        base_entry(11, "0/20", "DELETE", {"id": 4, "name": "d"}, {}),
        base_entry(12, "0/30", "TRUNCATE", {}, {}),
        heartbeat(12),
        options=SyncOptions("public.users", "c", want_old=True),
    )
    assert isinstance(found[0], Handshake) and not found[0].batches
    assert found[2] == SnapshotRows(
        [b"1", b"9223372036854775807", b"3"],
        [
            b'{"id":1,"name":"a"}',
            b'{"id":9223372036854775807,"name":"qu\\"ote"}',
            b'{"id":3,"name":null}',
        ],
    )
    changes = [event for event in found if isinstance(event, Changes)]
    assert [
        (c.actions, c.keys, c.lines, c.old_lines, list(c.positions), c.open) for c in changes
    ] == [
        (b"\x01", [b"4"], [b'{"id":4,"name":"d"}'], [b""], [0x20], True),
        (b"\x03", [b"4"], [b""], [b'{"id":4,"name":"d"}'], [0x20], True),
        (b"", [], [], [], [0x20], False),
        (b"\x04", [b""], [b""], [b""], [0x30], True),
        (b"", [], [], [], [0x30], False),
    ]
    assert changes[0].times_us == [2_000_005]


def flat(events: Sequence[Event]) -> list[tuple[int, bytes]]:
    return [
        (part.position, key)
        for event in events
        if isinstance(event, Changes)
        for part in event.transactions()
        for key in event.keys[part.start : part.stop]
    ]


async def test_resumes_at_the_last_whole_transaction() -> None:
    first: Script = [
        handshake(),
        *snapshot({}, "0/10", 5),
        batch(6, (0x20, [insert(1)]), (0x30, [insert(2)]), goes_on=True),
        CUT,
    ]
    again: Script = [handshake("DELTA"), batch(7, (0x30, [insert(2), insert(3)])), Hold()]
    async with playing(first, again) as (endpoint, server):
        subscription = Subscription(endpoint, OPTIONS, backoff=QUICK)
        found = await take(subscription, 7)
    assert server.requests[0].last_known_source_position == ""
    assert server.requests[1].last_known_source_position == "0/20"
    assert server.requests[1].history == HISTORY
    assert server.requests[1].last_known_sequence == 6
    assert sum(isinstance(event, Handshake) for event in found) == 2
    assert flat(found) == [(0x20, b"1"), (0x30, b"2"), (0x30, b"2"), (0x30, b"3")]
    assert (subscription.position, subscription.sequence) == (0x30, 8)


async def test_a_whole_transaction_that_is_sent_again_is_dropped() -> None:
    """A base-only server resumes inclusively."""
    script: Script = [
        handshake("DELTA", batches=False),
        base_entry(6, "0/20", "INSERT", {}, {"id": 1, "name": "x"}),
        base_entry(7, "0/20", "INSERT", {}, {"id": 2, "name": "x"}),
        base_entry(8, "0/30", "INSERT", {}, {"id": 3, "name": "x"}),
        heartbeat(8),
        Hold(),
    ]
    options = SyncOptions("public.users", "c", position=Position(0x20))
    async with playing(script) as (endpoint, _):
        subscription = Subscription(endpoint, options, backoff=QUICK)
        found = await take(subscription, 4)
    assert flat(found) == [(0x30, b"3")]
    assert subscription.position == 0x30


async def test_a_heartbeat_moves_the_place_but_not_inside_a_transaction() -> None:
    first: Script = [handshake("DELTA"), heartbeat(5, "0/50"), CUT]
    second: Script = [
        handshake("DELTA"),
        batch(6, (0x60, [insert(1)]), goes_on=True),
        heartbeat(6, "0/70"),
        CUT,
    ]
    async with playing(first, second, [handshake("DELTA"), Hold()]) as (endpoint, server):
        await take(
            Subscription(
                endpoint, SyncOptions("public.users", "c", position=Position(0x20)), backoff=QUICK
            ),
            6,
        )
    asked = [request.last_known_source_position for request in server.requests]
    assert asked == ["0/20", "0/50", "0/50"]


async def test_a_snapshot_cut_short_leaves_place_and_history_as_they_were() -> None:
    other = HISTORY.replace(":1:", ":2:")
    first: Script = [handshake(history=other), *snapshot({b"1": line(1, "a")}, "0/10", 5)[:2], CUT]
    options = SyncOptions(
        "public.users", "c", position=Position(0x99), history=position_.parse_history(HISTORY)
    )
    whole: Script = [handshake(history=other), *snapshot({}, "0/10", 5), Hold()]
    async with playing(first, whole) as (endpoint, server):
        subscription = Subscription(endpoint, options, backoff=QUICK)
        await take(subscription, 7)
    assert server.requests[1].last_known_source_position == "0/99"
    assert server.requests[1].history == HISTORY
    assert (subscription.position, str(subscription.history)) == (0x10, other)


async def test_go_away_reconnects_at_once_between_transactions() -> None:
    deadline = int((time.time() + 3600) * 1000)
    first: Script = [handshake("DELTA"), heartbeat(5, "0/50"), go_away(deadline), Hold()]
    async with playing(first, [handshake("DELTA"), Hold()]) as (endpoint, server):
        found = await take(Subscription(endpoint, OPTIONS, backoff=QUICK), 4)
    assert isinstance(found[2], GoAway)
    assert isinstance(found[3], Handshake)
    assert server.requests[1].last_known_source_position == "0/50"


async def test_go_away_within_a_transaction_takes_its_rest_first() -> None:
    deadline = int((time.time() + 3600) * 1000)
    first: Script = [
        handshake("DELTA"),
        batch(6, (0x60, [insert(1)]), goes_on=True),
        go_away(deadline),
        batch(7, (0x60, [insert(2)])),
        batch(8, (0x70, [insert(3)])),
        Hold(),
    ]
    async with playing(first, [handshake("DELTA"), Hold()]) as (endpoint, server):
        found = await take(Subscription(endpoint, OPTIONS, backoff=QUICK), 5)
    assert flat(found) == [(0x60, b"1"), (0x60, b"2")]
    assert server.requests[1].last_known_source_position == "0/60"


class Counting(Observer):
    def __init__(self) -> None:
        self.connections = 0
        self.errors: list[StreamError] = []

    def connected(self, handshake: Handshake) -> None:
        self.connections += 1

    def disconnected(self, error: StreamError, delay: float) -> None:
        self.errors.append(error)


async def test_the_observer_hears_of_every_failed_attempt() -> None:
    observer = Counting()
    scripts: list[Script] = [
        [End(grpc.StatusCode.FAILED_PRECONDITION)],
        [End(grpc.StatusCode.RESOURCE_EXHAUSTED)],
        [],
        [handshake("DELTA"), heartbeat(1, "0/1"), Hold()],
    ]
    async with playing(*scripts) as (endpoint, _):
        await take(Subscription(endpoint, OPTIONS, backoff=QUICK, observer=observer), 2)
    assert observer.connections == 1
    assert [type(error).__name__ for error in observer.errors] == [
        "TableNotReady",
        "Crowded",
        "StreamBroken",
    ]


async def test_what_no_retry_can_cure_is_raised() -> None:
    async with playing([End(grpc.StatusCode.NOT_FOUND, "no such table")]) as (endpoint, server):
        with pytest.raises(TableNotFound, match="no such table"):
            async with Subscription(endpoint, OPTIONS, backoff=QUICK) as events:
                await anext(events)
    assert len(server.requests) == 1


async def test_gives_up_after_the_allowed_attempts() -> None:
    async with playing([CUT]) as (endpoint, server):
        with pytest.raises(GaveUp, match="3 attempts"):
            backoff = Backoff(initial=0.001, maximum=0.001, attempts=3)
            async with Subscription(endpoint, OPTIONS, backoff=backoff) as events:
                await anext(events)
    assert len(server.requests) == 3


async def test_a_message_of_many_megabytes_passes() -> None:
    big = b'{"id":1,"name":"' + b"x" * 20_000_000 + b'"}'
    found = await events_of(handshake("DELTA"), batch(1, (0x20, [(1, b"1", big)])))
    assert isinstance(found[1], Changes)
    assert found[1].lines == [big]


async def test_a_connection_that_dies_without_a_word_is_noticed() -> None:
    async with playing([handshake("DELTA"), Hold()]) as (endpoint, _):
        with closing(Proxy(int(endpoint.server.rpartition(":")[2]))) as proxy:
            quick = replace(
                endpoint,
                server=f"127.0.0.1:{proxy.port}",
                keepalive_s=0.3,
                keepalive_timeout_s=0.3,
                silence_s=0.05,
            )
            async with asyncio.timeout(PATIENCE_S), open_stream(quick, OPTIONS) as stream:
                await anext(stream)
                proxy.stuck.set()
                with pytest.raises(ServerUnavailable):
                    await anext(stream)
