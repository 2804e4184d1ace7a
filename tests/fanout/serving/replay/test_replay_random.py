"""Random tables, windows and clients: whatever is replayed leads to the rows there are.

Every client begins with what the table held where it stopped, change by change for base clients,
and none may keep a row that came and went inside of a window. What the mode must be is found from
the noted states alone.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import orjson
import pytest

from laredo_archive.manifest import timeline
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import position as position_
from tests.support import drawn
from tests.support.server.archived import TRUNCATE, Archived, Moment, State
from tests.support.server.replay_reader import FULL, REPLAY, Reader, archived, names_of
from tests.support.server.serving_world import Stream, World, line

KEYS = 12
NAMES = ("red 1", "red 2", "red 3", "blue 1", "blue 2", "blue 3", "green")
RED = [wire.FieldPredicate(field="name", prefix="red")]
FORMATS = ("protobuf.zst", "jsonl", "jsonl.zst", "protobuf")


def transaction(chance: random.Random, state: State) -> list[tuple[int, str | None]]:
    held = {int(key): orjson.loads(row)["name"] for key, row in state.items()}
    writes: list[tuple[int, str | None]] = []
    for _ in range(chance.randint(1, 4)):
        number = chance.randint(1, KEYS)
        if chance.random() < 0.01:
            held.clear()
            writes.append(TRUNCATE)
        elif number in held and chance.random() < 0.3:
            del held[number]
            writes.append((number, None))
        else:
            held[number] = chance.choice(NAMES)
            writes.append((number, held[number]))
    return writes


def fill(table: Archived, chance: random.Random) -> None:
    """Some tens of transactions, in windows of any length."""
    table.begin({b"%d" % n: line(n, chance.choice(NAMES)) for n in range(1, chance.randint(1, 5))})
    for _ in range(chance.randint(15, 50)):
        table.commit(*transaction(chance, table.state))
        if chance.random() < 0.35:
            table.cut()
        if chance.random() < 0.05:
            table.rebase(continues=chance.random() < 0.9)
        if table.buffer.empty and table.archive.head and chance.random() < 0.3:
            table.see()


class Truth:
    """Expected replies to a client at a position, by the states alone."""

    def __init__(self, table: Archived) -> None:
        manifest = table.archive.manifest
        assert manifest is not None
        self._table = table
        self._epochs = timeline.epochs_of(manifest, "here")
        record = table.writer.store.tables[table.writer.ids["public.users"]]
        self.floor = record.floor
        self._seen = manifest.seen_position or 0

    def mode(self, position: int, *, batch: bool, want_old: bool = False) -> int | None:
        """The only mode that is right; None where either is."""
        if position >= self.floor + (not batch):
            return None
        windows = self._windows(position, batch=batch)
        if windows is None:
            return FULL
        if not windows:
            return REPLAY
        start, end = windows[0]
        if start == position and batch:
            return REPLAY
        moments = [m for m in self._table.moments if start < m.position <= end]
        states = [state for moment in moments for state in moment.states]
        before, after = self._table.state_at(start), states[-1]
        changed = {
            key
            for state in [before, *states]
            for key in state
            if before.get(key) == after.get(key)
            and any(other.get(key) != after.get(key) for other in states)
        }
        if changed or want_old:
            return FULL
        emptied = any(not state for state in [before, *states[:-1]])
        return None if emptied else REPLAY

    def _windows(self, position: int, *, batch: bool) -> list[tuple[int, int]] | None:
        """The diffs from the window that holds the position to the end; None: they don't lead."""
        reached = position if batch else position - 1
        chain: list[tuple[int, int]] = []
        at: int | None = None
        for epoch in self._epochs:
            base = epoch.base.to_position
            if at != base or not epoch.base.continues:
                chain, at = [], base
            for diff in epoch.diffs:
                chain.append((at, diff.to_position))
                at = diff.to_position
        assert at is not None
        first = chain[0][0] if chain else at
        if reached < first or max(at, self._seen) < self.floor:
            return None
        if reached > at:
            return None
        left = [window for window in chain if window[1] > reached]
        return left if left or reached == at else None


class BaseReader:
    """A client of the base form, keeping names by id; `stop_after` messages it is lost."""

    def __init__(self, state: State, position: int) -> None:
        self.names = names_of(state)
        self.position = position
        self.mode = 0

    async def read(self, world: World, stop_after: int | None = None, **request: Any) -> bool:
        """Read until level; False if it was lost before."""
        where = position_.text(self.position)
        stream: Stream = world.sync(last_known_source_position=where, **request)
        greeting = await stream.next("handshake")
        self.mode = greeting.mode
        sequence = world.writer.sequence
        left = stop_after
        while left is None or left > 0:
            message = await stream.next_of_any()
            if isinstance(message, wire.Heartbeat):
                if message.current_sequence >= sequence:
                    stream.cancel()
                    return True
                continue
            self._take(message)
            left = None if left is None else left - 1
        stream.cancel()
        return False

    def _take(self, message: Any) -> None:
        if isinstance(message, wire.SnapshotBegin):
            self.names = {}
        elif isinstance(message, wire.SnapshotRow):
            self.names[int(message.row["id"])] = message.row["name"]
        elif isinstance(message, wire.ReplicationJournalEntry):
            if message.action == "TRUNCATE":
                self.names = {}
            elif message.action == "DELETE":
                self.names.pop(int(message.old_values["id"]), None)
            else:
                # Of a row that a filter hides only the key is shown, and its DELETE follows.
                row = dict(message.new_values)
                self.names[int(row["id"])] = row.get("name")
            self.position = position_.parse(message.source_position)


def red(state: State) -> State:
    names = names_of(state)
    return {key: row for key, row in state.items() if names[int(key)].startswith("red")}


async def check_batch(world: World, table: Archived, truth: Truth, moment: Moment) -> int:
    found = Reader(world, moment.state, moment.position)
    mode = await found.level()
    assert found.state == table.state, (moment.position, mode)
    wanted = truth.mode(moment.position, batch=True)
    assert wanted in (None, mode), (hex(moment.position), hex(truth.floor))
    return mode


async def check_old(world: World, table: Archived, truth: Truth, moment: Moment) -> int:
    """Old rows are those that the client holds."""
    found = Reader(world, moment.state, moment.position, want_old=True)
    mode = await found.level()
    assert truth.mode(moment.position, batch=True, want_old=True) in (None, mode)
    if mode != FULL:
        state = dict(moment.state)
        for action, key, row, old in found.changes:
            if action == 4:
                state = {}
                continue
            assert state.get(key, b"") == old
            state = {**state, key: row} if row else {k: v for k, v in state.items() if k != key}
    assert found.state == table.state
    return mode


async def check_filtered(world: World, table: Archived, truth: Truth, moment: Moment) -> int:
    found = Reader(world, red(moment.state), moment.position, filters=RED)
    mode = await found.level()
    assert found.state == red(table.state), (moment.position, mode)
    assert truth.mode(moment.position, batch=True) in (None, mode)
    return mode


async def check_base(world: World, table: Archived, truth: Truth, moment: Moment) -> int:
    """Stopped after each change of the transaction, and lost again in the middle of the way."""
    chance = random.Random(moment.position)
    mode = 0
    for state in moment.states:
        found = BaseReader(state, moment.position)
        while not await found.read(world, chance.randint(1, 6) if chance.random() < 0.3 else None):
            mode = mode or found.mode
            if found.mode == FULL:
                found = BaseReader(state, moment.position)
        mode = mode or found.mode
        assert found.names == names_of(table.state), (moment.position, mode)
        assert truth.mode(moment.position, batch=False) in (None, mode)
    return mode


async def check_base_filtered(world: World, table: Archived, truth: Truth, moment: Moment) -> int:
    found = BaseReader(red(moment.state), moment.position)
    assert await found.read(world, filters=RED)
    assert found.names == names_of(red(table.state)), (moment.position, found.mode)
    assert truth.mode(moment.position, batch=False) in (None, found.mode)
    return found.mode


CHECKS = (check_batch, check_old, check_filtered, check_base, check_base_filtered)


@pytest.mark.parametrize("seed", drawn.first(1, range(12)))
async def test_whoever_stopped_wherever_ends_with_the_rows_there_are(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    modes: set[int] = set()
    async with archived(tmp_path, formats=(FORMATS[seed % 4],)) as (world, table):
        fill(table, chance)
        table.cut()
        early = chance.random() < 0.8
        if early:
            table.prune(chance.choice((1, 1, 5)))
        for _ in range(chance.randint(0, 4)):
            table.commit(*transaction(chance, table.state))
        if not early:
            table.prune(chance.choice((1, 5)))
        truth = Truth(table)
        chosen = chance.sample(table.moments, min(len(table.moments), 20))
        for check in CHECKS:
            found = await asyncio.gather(*[check(world, table, truth, moment) for moment in chosen])
            modes |= set(found)
    assert modes
