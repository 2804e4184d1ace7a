"""Cuts at one position, whatever the tables' streams do."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laredo_model.position import Position
from laredo_snapshotter.diff.cuts import (
    MOST_PENDING,
    CutSchedule,
    PendingCuts,
    VerifiedPosition,
    cut_together,
)
from tests.support.processes import PATIENCE_S


class Table:
    def __init__(self, history: str, position: int | None) -> None:
        self.history = history
        self.position = position
        self.cuts: list[int] = []
        self.common: list[int] = []
        self.ticks = 0

    @property
    def stream(self) -> tuple[str, int] | None:
        return None if self.position is None else (self.history, self.position)

    def cut(self, position: int, *, common: bool) -> None:
        self.cuts.append(position)
        if common:
            self.common.append(position)

    def tick(self) -> None:
        self.ticks += 1


def test_all_live_tables_of_a_history_are_cut_at_the_highest_position() -> None:
    a, b, c = Table("h", 5), Table("h", 9), Table("h", None)
    other = Table("another", 3)
    cut_together([a, b, c, other])
    assert (a.cuts, b.cuts, c.cuts, other.cuts) == ([9], [9], [], [3])
    assert [table.ticks for table in (a, b, c, other)] == [1, 1, 1, 1]
    assert a.common == []
    cut_together([a, b], common=True)
    assert (a.common, b.common) == ([9], [9])


def test_cuts_are_taken_in_order_once_and_a_forced_one_stays_forced() -> None:
    owed = PendingCuts(60)
    owed.add(7, 0.0, forced=True)
    owed.add(5, 1.0)
    owed.add(7, 2.0)
    assert owed.next_position() == 5
    assert [(cut.position, cut.forced) for cut in owed.take(6)] == [(5, False)]
    assert [(cut.position, cut.forced) for cut in owed.take(9)] == [(7, True)]
    assert owed.take(99) == []
    owed.add(8, 0.0, common=True)
    owed.add(8, 1.0)
    assert [(cut.position, cut.common) for cut in owed.take(9)] == [(8, True)]


def test_a_stuck_table_forgets_old_cuts_but_never_a_forced_one_nor_the_newest() -> None:
    owed = PendingCuts(60)
    owed.add(1, 0.0)
    owed.add(2, 0.0, forced=True)
    owed.add(3, 100.0)
    assert [cut.position for cut in owed.take(99)] == [2, 3]
    assert owed.forgotten == 1


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=40))
def test_taking_at_any_rate_gives_each_position_once_in_order(
    steps: list[tuple[int, bool]],
) -> None:
    owed = PendingCuts(1e9)
    asked: set[int] = set()
    reached, taken = -1, []
    for position, forced in steps:
        if position > reached:
            owed.add(position, 0.0, forced=forced)
            asked.add(position)
        if forced:
            reached = max(reached, position)
            taken += [cut.position for cut in owed.take(reached)]
    taken += [cut.position for cut in owed.take(99)]
    assert taken == sorted(asked)


def test_what_a_table_owes_is_bounded() -> None:
    owed = PendingCuts(1e9)
    for position in range(3 * MOST_PENDING):
        owed.add(position, 0.0)
    taken = owed.take(10**6)
    assert len(taken) == MOST_PENDING
    assert owed.forgotten == 2 * MOST_PENDING
    assert taken[-1].position == 3 * MOST_PENDING - 1


# Tables are cut at the multiples of their intervals, and all at those of the longest.


class Timed:
    def __init__(self) -> None:
        self.cuts: list[tuple[float, bool]] = []
        self.now = 0.0
        self.cut_once = asyncio.Event()

    @property
    def stream(self) -> tuple[str, int]:
        return ("h", 1)

    def cut(self, position: int, *, common: bool) -> None:
        self.cuts.append((round(self.now, 3), common))
        self.cut_once.set()

    def tick(self) -> None: ...


class Hours:
    """A clock that stands at each moment when something is due."""

    def __init__(self, *tables: Timed) -> None:
        self.tables = tables
        self.now = 0.0
        self.schedule = CutSchedule(lambda: self.now)

    def until(self, end: float) -> None:
        while True:
            delay = self.schedule.cut_due()
            assert delay is not None
            if self.now + delay > end:
                return
            self.go(self.now + delay)

    def go(self, now: float) -> None:
        self.now = now
        for table in self.tables:
            table.now = now


async def test_all_are_cut_at_the_multiples_of_the_longest_interval() -> None:
    five, seven, ten = tables = [Timed(), Timed(), Timed()]
    hours = Hours(*tables)
    for table, interval in zip(tables, (5.0, 7.0, 10.0), strict=True):
        hours.schedule.add(table, interval)
    hours.until(20)
    assert five.cuts == [(5, False), (10, True), (15, False), (20, True)]
    assert seven.cuts == [(7, False), (10, True), (14, False), (20, True)]
    assert ten.cuts == [(10, True), (20, True)]


async def test_intervals_meet_whatever_floats_say() -> None:
    tenth, third = tables = [Timed(), Timed()]
    hours = Hours(*tables)
    hours.schedule.add(tenth, 0.1)
    hours.schedule.add(third, 0.3)
    hours.until(3.0)
    assert len(tenth.cuts) == 30
    assert [at for at, common in tenth.cuts if common] == [at for at, _ in third.cuts]


async def test_a_stall_is_one_cut_and_the_rhythm_stays() -> None:
    table = Timed()
    hours = Hours(table)
    hours.schedule.add(table, 5.0)
    hours.until(10)
    hours.go(33.0)
    hours.until(40)
    assert [at for at, _ in table.cuts] == [5, 10, 33, 35, 40]
    assert not any(common for _, common in table.cuts), "there are no others"


async def test_tables_come_and_go() -> None:
    slow, quick = tables = [Timed(), Timed()]
    hours = Hours(*tables)
    assert hours.schedule.cut_due() is None
    hours.schedule.add(slow, 10.0)
    hours.schedule.add(quick, 4.0)
    hours.until(12)
    hours.schedule.remove(slow)
    hours.until(20)
    assert slow.cuts == [(10, True)]
    assert quick.cuts == [
        *((4, False), (8, False), (10, True), (12, False)),
        (16, False),
        (20, False),
    ]
    hours.schedule.remove(quick)
    assert hours.schedule.cut_due() is None


@pytest.mark.parametrize("others", [[], [3600.0]])
async def test_one_that_comes_while_it_waits_is_cut_in_time(others: list[float]) -> None:
    schedule = CutSchedule(time.monotonic)
    for interval in others:
        schedule.add(Timed(), interval)
    running = asyncio.create_task(schedule.run())
    await asyncio.sleep(0)
    table = Timed()
    schedule.add(table, 0.05)
    await asyncio.wait_for(table.cut_once.wait(), PATIENCE_S)
    running.cancel()


# The position up to which a table is verified.


def test_where_the_server_does_not_tell_everything_is_verified() -> None:
    verified = VerifiedPosition()
    assert verified.covers(10**9)
    assert verified.limit(Position(7)) == 7


def test_an_artifact_may_end_at_it_and_not_behind_it() -> None:
    verified = VerifiedPosition()
    verified.set(100)
    assert verified.covers(100)
    assert not verified.covers(101)
    assert (verified.limit(Position(99)), verified.limit(Position(101))) == (99, 100)


def test_nothing_is_verified_when_a_snapshot_begins() -> None:
    verified = VerifiedPosition()
    verified.set(0)
    assert not verified.covers(1)


def test_who_waits_is_notified_of_changes_only() -> None:
    verified, seen = VerifiedPosition(), list[int | None]()
    verified.notify(lambda: seen.append(verified.position))
    for position in (5, 5, 6, None, None):
        verified.set(position)
    assert seen == [5, 6, None]
