"""Tables are cut at the multiples of their intervals, and all at those of the longest."""

import asyncio
import time

import pytest

from laredo_snapshotter.diff.cuts import CutSchedule
from tests.support.processes import PATIENCE_S


class Table:
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

    def __init__(self, *tables: Table) -> None:
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
    five, seven, ten = tables = [Table(), Table(), Table()]
    hours = Hours(*tables)
    for table, interval in zip(tables, (5.0, 7.0, 10.0), strict=True):
        hours.schedule.add(table, interval)
    hours.until(20)
    assert five.cuts == [(5, False), (10, True), (15, False), (20, True)]
    assert seven.cuts == [(7, False), (10, True), (14, False), (20, True)]
    assert ten.cuts == [(10, True), (20, True)]


async def test_intervals_meet_whatever_floats_say() -> None:
    tenth, third = tables = [Table(), Table()]
    hours = Hours(*tables)
    hours.schedule.add(tenth, 0.1)
    hours.schedule.add(third, 0.3)
    hours.until(3.0)
    assert len(tenth.cuts) == 30
    assert [at for at, common in tenth.cuts if common] == [at for at, _ in third.cuts]


async def test_a_stall_is_one_cut_and_the_rhythm_stays() -> None:
    table = Table()
    hours = Hours(table)
    hours.schedule.add(table, 5.0)
    hours.until(10)
    hours.go(33.0)
    hours.until(40)
    assert [at for at, _ in table.cuts] == [5, 10, 33, 35, 40]
    assert not any(common for _, common in table.cuts), "there are no others"


async def test_tables_come_and_go() -> None:
    slow, quick = tables = [Table(), Table()]
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
        schedule.add(Table(), interval)
    running = asyncio.create_task(schedule.run())
    await asyncio.sleep(0)
    table = Table()
    schedule.add(table, 0.05)
    await asyncio.wait_for(table.cut_once.wait(), PATIENCE_S)
    running.cancel()
