"""Cuts of random streams: whatever the batches, what is frozen at a cut is the state there."""

import asyncio
import random
from bisect import bisect_right
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from laredo_fanout.client.events import Changes, Handshake, Heartbeat, Mode
from laredo_fanout.client.stream.stream import Observer
from laredo_fanout.client.table_client import TableStatus
from laredo_model import position as position_
from laredo_model.column import Column
from laredo_model.position import Position
from laredo_snapshotter import config
from laredo_snapshotter.diff.buffer import FrozenBuffer
from laredo_snapshotter.diff.cuts import VerifiedPosition
from laredo_snapshotter.diff.feed import Feed
from laredo_snapshotter.table.last_flush import JournalReach
from tests.snapshotter.change_stream import State, Stream, assert_leads
from tests.support.drawn import examples

HISTORY = position_.parse_history("7300000000000000001:1:16384")
COLUMNS = (Column("id", "text", nullable=False, ordinal=1, key_ordinal=1),)


class Collected:
    """An outlet that keeps what is put."""

    waiting_bytes = 0
    waiting_spilled_bytes = 0
    unverified = None

    def __init__(self) -> None:
        self.blocked: str | None = None
        self.frozen: list[FrozenBuffer] = []

    def put(self, frozen: FrozenBuffer) -> None:
        self.frozen.append(frozen)

    def cut_off(self) -> int:
        return 0

    async def progress(self) -> None: ...

    async def drained(self) -> None: ...
    async def settled(self) -> None: ...


class Known:
    """A table whose archive every stream fits."""

    def fits(self, handshake: Handshake) -> bool:
        return True

    async def begin_base(self, *_: Any) -> Any:
        raise NotImplementedError


def handshake(position: int) -> Handshake:
    return Handshake(Mode.DELTA, Position(position), HISTORY, COLUMNS, 0, 0, 0, "", True)


SETTINGS = (
    'snapshotter.source={ server = "localhost:1", table = t }',
    "snapshotter.destinations=[{type = local, path = /nowhere}]",
)
(TABLE,) = config.matching_tables(config.load(None, SETTINGS), {})


async def live_feed(
    outlet: Collected, position: int, verified: VerifiedPosition | None = None
) -> Feed:
    feed = Feed(
        TABLE,
        Known(),
        outlet,
        Observer(),
        verified or VerifiedPosition(),
        position=Position(position),
        history=HISTORY,
    )
    await feed.take(handshake(position))
    return feed


async def follow(seed: int) -> None:
    stream = Stream(seed)
    chance = stream.random
    outlet = Collected()
    feed = await live_feed(outlet, stream.position)
    states: list[tuple[int, State]] = [(stream.position, {})]
    cuts: set[int] = set()
    common: set[int] = set()
    forced: dict[int, asyncio.Future[FrozenBuffer | None]] = {}
    sequence = 1
    for _ in range(chance.randrange(1, 12)):
        transactions = []
        for _ in range(chance.randrange(1, 6)):
            transactions.append(stream.transaction())
            states.append((stream.position, dict(stream.state)))
        for batch in batches(chance, transactions, sequence):
            sequence += len(batch)
            if chance.random() < 0.4:
                # Another table's stream may be anywhere at or before the source's position.
                at = chance.randrange(feed.cuts.position or 0, stream.position + 8)
                cuts.add(at)
                if chance.random() < 0.3:
                    forced[at] = feed.cuts.cut_exactly(at)
                elif chance.random() < 0.4:
                    common.add(at)
                    feed.cuts.cut(at, common=True)
                else:
                    feed.cuts.cut(at)
            await feed.take(batch)
        if chance.random() < 0.3:
            stream.position += 3
            await feed.take(Heartbeat(Position(stream.position), 0, None))
    await feed.take(Heartbeat(Position(stream.position + 100), 0, None))
    feed.cuts.freeze_all()
    check(outlet, states, cuts, forced)
    check_known(outlet, states, common, feed.cuts.unchanged_until)


def batches(chance: random.Random, transactions: list[Any], sequence: int) -> list[Changes]:
    """The transactions as a server may send them: several in a batch, one over several."""
    parts: list[tuple[int, list[Any], bool]] = []
    for position, rows in transactions:
        if chance.random() < 0.3:
            middle = chance.randrange(len(rows) + 1)
            parts += [(position, rows[:middle], False), (position, rows[middle:], True)]
        else:
            parts.append((position, rows, True))
    grouped: list[list[tuple[int, list[Any], bool]]] = [[]]
    for part in parts:
        grouped[-1].append(part)
        if not part[2] or chance.random() < 0.4:
            grouped.append([])
    made = []
    for group in grouped:
        if group:
            changes = [row for _, rows, _ in group for row in rows]
            made.append(
                Changes(
                    sequence,
                    bytes(row[0] for row in changes),
                    [row[1] for row in changes],
                    [row[2] for row in changes],
                    [row[3] for row in changes],
                    [len(rows) for _, rows, _ in group],
                    [position for position, _, _ in group],
                    [position for position, _, _ in group],
                    not group[-1][2],
                )
            )
            sequence += len(changes)
    return made


def check(
    outlet: Collected,
    states: list[tuple[int, State]],
    cuts: set[int],
    forced: dict[int, "asyncio.Future[FrozenBuffer | None]"],
) -> None:
    positions = [position for position, _ in states]

    def state_at(position: int) -> State:
        return states[bisect_right(positions, position) - 1][1]

    before, boundaries = states[0][1], [states[0][0]]
    for frozen in outlet.frozen:
        assert frozen.to_position >= boundaries[-1]
        assert_leads(before, frozen, state_at(frozen.to_position))
        before = state_at(frozen.to_position)
        boundaries.append(frozen.to_position)
    assert before == states[-1][1], "something was never frozen"
    for cut in cuts:
        last = boundaries[bisect_right(boundaries, cut) - 1]
        assert state_at(last) == state_at(cut), f"can't be read at the cut {cut}"
    for position, done in forced.items():
        assert done.done()
        frozen_there = done.result()
        assert frozen_there is not None
        assert frozen_there.to_position == position


def check_known(
    outlet: Collected, states: list[tuple[int, State]], common: set[int], after_last: int | None
) -> None:
    """Up to where a diff says that the table stayed as it was, no transaction changed it; and at
    the cuts of all tables it is known by that."""
    ends = [(frozen.to_position, frozen.unchanged_until) for frozen in outlet.frozen]
    known: set[int] = set()
    start = states[0][0]
    for end, given_until in [*ends, (states[-1][0] + 100, after_last)]:
        until = end if given_until is None else given_until
        assert not [at for at, _ in states if start < at <= until], f"changed before {until}"
        known |= set(range(start, until + 1))
        start = end
    assert common <= known


@settings(max_examples=examples(300))
@given(seed=st.integers(0, 2**32))
@example(seed=460)  # a cut before an open transaction, then one that other tables chose
def test_what_is_frozen_at_a_cut_is_the_state_there(seed: int) -> None:
    asyncio.run(follow(seed))


async def test_while_a_destination_is_away_intervals_make_one_diff() -> None:
    stream, outlet = Stream(5), Collected()
    feed = await live_feed(outlet, stream.position)
    outlet.blocked = "away"
    for _ in range(4):
        for batch in batches(stream.random, [stream.transaction()], 1):
            await feed.take(batch)
        feed.cuts.cut(stream.position)
    assert outlet.frozen == []
    outlet.blocked = None
    feed.cuts.cut(stream.position)
    (frozen,) = outlet.frozen
    assert_leads({}, frozen, stream.state)


async def test_an_exact_cut_is_made_although_nothing_changed() -> None:
    outlet = Collected()
    feed = await live_feed(outlet, 100)
    done = feed.cuts.cut_exactly(120)
    feed.cuts.cut(110)
    await feed.take(Heartbeat(Position(119), 0, None))
    assert not done.done()
    await feed.take(Heartbeat(Position(130), 0, None))
    assert [frozen.to_position for frozen in outlet.frozen] == [120]
    assert done.result() is outlet.frozen[0]


def inserted(
    key: bytes, position: int, *, since: int | None = None, goes_on: bool = False
) -> Changes:
    return Changes(
        1,
        b"\x01",
        [key],
        [key],
        [b""],
        [1],
        [position],
        [position],
        goes_on,
        since=None if since is None else Position(since),
    )


async def test_within_what_stands_for_many_transactions_nothing_is_cut() -> None:
    outlet = Collected()
    feed = await live_feed(outlet, 100)
    await feed.take(inserted(b"a", 110))
    feed.cuts.cut(150)
    feed.cuts.cut(120)
    within = feed.cuts.cut_exactly(130)
    await feed.take(inserted(b"b", 200, since=120, goes_on=True))
    feed.cuts.cut(160)
    await feed.take(inserted(b"c", 200, since=120))
    assert [frozen.to_position for frozen in outlet.frozen] == [120, 200]
    assert [len(list(frozen.changes())) for frozen in outlet.frozen] == [1, 2]
    assert within.result() is None


async def test_nothing_is_seen_before_the_last_that_was_taken() -> None:
    verified = VerifiedPosition()
    feed = await live_feed(Collected(), 100, verified)
    verified.set(150)
    await feed.take(inserted(b"a", 200))
    assert feed.cuts.seen_position is None
    verified.set(200)
    assert feed.cuts.seen_position == 200


# Time for which a closed stream can still be resumed.


def told(oldest: int) -> TableStatus:
    return TableStatus(500, oldest, 500 - oldest, 10, 0)


def test_it_tells_the_time_left_from_the_pace_of_pruning() -> None:
    journal = JournalReach(199)
    first = journal.check(told(100), now=0.0)
    assert (first.reaches, first.seconds_left) == (True, None)
    assert journal.check(told(120), now=10.0).seconds_left == 40.0
    gone = journal.check(told(201), now=20.0)
    assert (gone.reaches, gone.seconds_left) == (False, 0.0)


def test_the_next_entry_is_all_that_is_needed() -> None:
    assert JournalReach(199).check(told(200), now=0.0).reaches is True
    assert JournalReach(None).check(told(200), now=0.0).reaches is None
