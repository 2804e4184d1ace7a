"""Clients work in slices: other tasks of the loop run during a snapshot and a large transaction."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laredo_fanout.client import (
    AsyncFanoutClient,
    Changes,
    Endpoint,
    SnapshotRows,
    SyncOptions,
    TableIndex,
    open_stream,
)
from laredo_fanout.client.loop_share import LoopShare
from laredo_fanout.client.stream.endpoint import Transport
from laredo_fanout.client.stream.translate import values
from laredo_fanout.client.table.replica import pieces
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model.line import Action
from tests.fanout.client.scripted_replica import as_changes
from tests.support.processes import PATIENCE_S, until
from tests.support.server.scripted_server import (
    Hold,
    When,
    batch,
    handshake,
    heartbeat,
    line,
    playing,
    snapshot,
)

ROWS = {b"%d" % number: line(number, "x") for number in range(5000)}
INDEX = {"n": TableIndex(["name"])}


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check finds the slice used: what is counted is how often it is checked."""
    monkeypatch.setattr("laredo_fanout.client.loop_share._SLICE_S", -1.0)


class Turns:
    """Counts the turns of the loop, and the most that something grew from one turn to the next."""

    def __init__(self) -> None:
        self.count = 0
        self.probe: Callable[[], int] = int
        self.most = 0

    async def take(self) -> None:
        known = 0
        while True:
            self.count += 1
            known, before = self.probe(), known
            self.most = max(self.most, known - before)
            await asyncio.sleep(0)


@asynccontextmanager
async def counted() -> AsyncIterator[Turns]:
    turns = Turns()
    task = asyncio.create_task(turns.take())
    yield turns
    task.cancel()
    await asyncio.wait([task])


async def at_the_turn(condition: Callable[[], object]) -> None:
    """Wait for what may be true for a few turns of the loop only."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0)


def staged(client: AsyncFanoutClient) -> int:
    found = client._replica._staged
    return 0 if found is None else len(found[0])


@pytest.mark.usefixtures("always")
async def test_a_snapshot_comes_in_slices(tmp_path: Path) -> None:
    """From the server, and from the file that was saved."""
    script = [handshake(), *snapshot(ROWS, "0/10", 5), Hold()]
    again = [handshake("DELTA"), Hold()]
    async with playing(script, again) as (endpoint, _), counted() as turns:
        for _ in range(2):
            client = AsyncFanoutClient(
                endpoint.server, "public.users", indexes=INDEX, local_snapshot_path=tmp_path / "f"
            )
            turns.most, turns.probe = 0, lambda client=client: staged(client)  # type: ignore[misc]
            await client.start()
            await until(lambda client=client: len(client) == len(ROWS))
            # The message has 5,000 rows; with an index 50 of them are a step.
            assert 0 < turns.most <= 100
            await client.stop()


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("indexed", [True, False])
async def test_a_large_transaction_comes_in_slices(indexed: bool) -> None:
    ready = asyncio.Event()
    more = [(Action.UPDATE, key, line(int(key), "y")) for key in ROWS]
    script = [
        handshake(),
        *snapshot(ROWS, "0/10", 5),
        When(ready.is_set),
        batch(6, (0x20, more)),
        Hold(),
    ]
    async with playing(script) as (endpoint, _), counted() as turns:
        indexes = INDEX if indexed else None
        client = AsyncFanoutClient(endpoint.server, "public.users", indexes=indexes)
        async with client:
            await client.await_ready(PATIENCE_S)
            turns.most, turns.probe = 0, lambda: client._replica.reached.open_changes
            ready.set()
            await until(lambda: client.position == 0x20)
            assert 0 < turns.most <= (300 if indexed else 2000)
            assert await client.lookup(4999) == {"id": 4999, "name": "y"}


@pytest.mark.usefixtures("always")
async def test_rows_leave_turns_and_are_of_before_a_transaction_in_parts() -> None:
    ready, second = asyncio.Event(), asyncio.Event()
    changes = [[(Action.UPDATE, key, line(int(key), name)) for key in ROWS] for name in "yz"]
    script = [
        handshake(),
        *snapshot(ROWS, "0/10", 5),
        When(ready.is_set),
        batch(6, (0x20, changes[0])),
        When(second.is_set),
        batch(6 + len(ROWS), (0x30, changes[1])),
        Hold(),
    ]
    async with playing(script) as (endpoint, _), counted() as turns:
        client = AsyncFanoutClient(endpoint.server, "public.users")

        async def names() -> tuple[object, set[str], int]:
            rows, read = client.rows(PATIENCE_S), 0
            turns.most, turns.probe = 0, lambda: read
            found = set()
            async for row in rows:
                found.add(row["name"])
                read += 1
            return rows.position, found, read

        async with client:
            await client.await_ready(PATIENCE_S)
            ready.set()
            await at_the_turn(lambda: client._replica.reached.open_changes)
            # What the rows were before isn't known of a transaction that began before this call.
            assert await names() == (0x20, {"y"}, len(ROWS))
            assert 0 < turns.most <= 2
            second.set()
            await at_the_turn(lambda: client._replica.reached.open_changes)
            assert await names() == (0x20, {"y"}, len(ROWS))
            await until(lambda: client.position == 0x30)
            assert await names() == (0x30, {"z"}, len(ROWS))


@pytest.mark.usefixtures("always")
async def test_listeners_leave_turns() -> None:
    """Also those of a TRUNCATE, which is one change."""
    ready = asyncio.Event()
    script = [
        handshake(),
        *snapshot(ROWS, "0/10", 5),
        When(ready.is_set),
        batch(6, (0x20, [(Action.TRUNCATE, b"", b"")])),
        Hold(),
    ]
    seen: list[int] = []
    async with playing(script) as (endpoint, _), counted() as turns:
        client = AsyncFanoutClient(endpoint.server, "public.users", indexes=INDEX)
        async with client:
            await client.await_ready(PATIENCE_S)
            await client.listen(lambda old, new: seen.append(turns.count))
            ready.set()
            await until(lambda: len(seen) == len(ROWS))
            assert len(client) == 0 and await client.lookup_index("n", "x") == []
    assert max(Counter(seen).values()) <= 2


@pytest.mark.usefixtures("always")
async def test_one_client_a_turn() -> None:
    """However many clients there are, one slice is between two turns of the loop."""
    share = LoopShare.of_running_loop()
    assert share is LoopShare.of_running_loop()
    order: list[int] = []

    async def client(name: int) -> None:
        for _ in range(20):
            await share.pause_if_used()
            order.append(name)

    async with counted() as turns:
        await asyncio.gather(*(client(name) for name in range(3)))
        assert turns.count >= 57
    assert order == [0, 1, 2] * 20


async def test_what_does_not_fit_into_a_slice_waits_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    share = LoopShare.of_running_loop()
    async with counted() as turns:
        await asyncio.sleep(0)
        monkeypatch.setattr("laredo_fanout.client.loop_share._SLICE_S", 1000.0)
        before = turns.count
        # Nothing of the slice is used: it is as good as the next one.
        await share.pause_before(1.0)
        assert turns.count == before
        monkeypatch.setattr("laredo_fanout.client.loop_share._SLICE_S", 0.01)
        began = perf_counter()
        while perf_counter() - began < 0.005:
            pass
        await share.pause_before(1.0)
        assert turns.count > before


@pytest.mark.usefixtures("always")
async def test_a_part_of_a_large_transaction_has_a_slice_of_its_own() -> None:
    """Other tasks run before each part, and after it."""
    ready = asyncio.Event()
    more = [(Action.UPDATE, key, line(int(key), "y")) for key in ROWS]
    script = [handshake(), *snapshot(ROWS, "0/10", 5), When(ready.is_set)]
    script += [batch(6, (0x20, more)), Hold()]
    seen: Counter[int] = Counter()
    async with (
        playing(script) as (endpoint, _),
        AsyncFanoutClient(endpoint.server, "public.users") as client,
        counted() as turns,
    ):

        def applied() -> int:
            seen[client._replica.reached.open_changes] += 1
            return 0

        await client.await_ready(PATIENCE_S)
        turns.probe = applied
        ready.set()
        await until(lambda: client.position == 0x20)
    # A pause takes two turns.
    assert [seen[parts * 1000] for parts in (1, 2, 3, 4)] == [4] * 4


transactions = st.lists(st.integers(0, 12), min_size=1, max_size=8)


@given(counts=transactions, most=st.integers(1, 10), goes_on=st.booleans())
def test_pieces_are_the_same_changes_and_cut_only_large_transactions(
    counts: list[int], most: int, goes_on: bool
) -> None:
    rows = iter(range(1000))
    whole = as_changes(
        [
            (0x20 + 16 * number, [(1, b"%d" % next(rows), b"l") for _ in range(count)])
            for number, count in enumerate(counts)
        ],
        goes_on=goes_on,
    )
    found = list(pieces(whole, most))
    assert all(len(piece) <= most for piece in found)
    assert [key for piece in found for key in piece.keys] == whole.keys
    assert _by_sequence(found) == _by_sequence([whole])
    assert _ends(found) == _ends([whole])
    for piece in found:
        for part in piece.transactions():
            count = counts[(part.position - 0x20) // 16]
            assert part.stop - part.start == count or count > most


def _by_sequence(batches: Sequence[Changes]) -> list[tuple[int, bytes]]:
    return [
        (batch.sequence(index), key) for batch in batches for index, key in enumerate(batch.keys)
    ]


def _ends(batches: Sequence[Changes]) -> list[int]:
    return [part.position for batch in batches for part in batch.transactions() if part.last]


class Sent(Transport):
    """A transport whose server has sent these messages."""

    def __init__(self, *messages: wire.SyncResponse) -> None:
        self._messages = messages

    def check(self) -> None:
        """Nothing can be wrong with it."""

    @asynccontextmanager
    async def sync(
        self, request: wire.SyncRequest
    ) -> AsyncIterator[AsyncIterator[wire.SyncResponse]]:
        yield self._all()

    async def status(
        self, request: wire.GetReplicationStatusRequest, timeout: float
    ) -> wire.GetReplicationStatusResponse:
        return wire.GetReplicationStatusResponse()

    async def _all(self) -> AsyncIterator[wire.SyncResponse]:
        for message in self._messages:
            yield message


@pytest.mark.usefixtures("always")
async def test_a_large_message_is_taken_apart_in_slices() -> None:
    """500 keys, or rows, are taken out of it between two turns of the loop."""
    changes = [(Action.UPDATE, key, row) for key, row in ROWS.items()]
    large, small = batch(6, (0x20, changes)), heartbeat(5005)
    sent = Sent(handshake(), *snapshot(ROWS, "0/10", 5), large, small)
    endpoint, options = Endpoint("127.0.0.1:1"), SyncOptions("public.users", "c")
    async with counted() as turns, open_stream(endpoint, options, transport=sent) as events:
        seen = [(event, turns.count) async for event in events]
    _, (_, begun), (first, staged_at), (_, shown_at), (second, changed_at), (_, ended) = seen
    assert isinstance(first, SnapshotRows) and isinstance(second, Changes)
    assert (first.keys, second.lines) == (list(ROWS), list(ROWS.values()))
    parts = 2 * len(ROWS) // 500
    # A small message has two pauses.
    pause = (ended - changed_at) / 2
    assert staged_at - begun >= parts * pause > 0
    assert changed_at - shown_at >= parts * pause


class Handed(list[bytes]):
    """A column that counts what was taken of it since the last turn."""

    since_turn = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.since_turn += len(found)
        return found


@given(many=st.integers(0, 2100))
def test_a_column_is_taken_in_parts(many: int) -> None:
    column = Handed(b"%d" % number for number in range(many))
    taking = values(column)
    while True:
        try:
            next(taking)
        except StopIteration as taken:
            assert taken.value == column
            break
        assert column.since_turn <= 500
        column.since_turn = 0
