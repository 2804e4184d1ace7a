"""The backlogs that fall-behind mode is measured with, and consumers that throw everything away."""

import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import psycopg

from benchmarks import bench_table
from benchmarks.scenario import Scenario

Database = psycopg.Connection[tuple[object, ...]]

_SIZE = 1000
_WIDE = 1400
"""Bytes of a row that isn't published."""
_SNAPSHOT_BYTES = 150 << 20
"""WAL between two records of the running transactions. Decoding can begin only at one of them.
PostgreSQL writes one every 15 seconds: every 150 MB at 10 MB/s. The backlogs here are made faster,
so the benchmark has them written."""
_WIDE_PER_UPDATE = 9
"""A published update is about 5 % of the WAL then."""
_ONE, _FIRST, _SECOND = "bench_one", "bench_first", "bench_second"


@dataclass(frozen=True)
class Backlog:
    """``make`` makes so many published changes and calls its last argument in the middle."""

    name: str
    changes: int
    make: Callable[[Database, Scenario, int, Callable[[], None]], None]


def backlogs(scenario: Scenario) -> list[Backlog]:
    """Backlogs to measure: all published, little published, and transactions that spill."""
    few = scenario.updates // 2
    return [
        Backlog("all of it published, random keys", 2 * scenario.updates, _dense),
        Backlog("5 % of the WAL published", few, _sparse),
        Backlog("5 % published, in transactions that PostgreSQL spills", few, _spilled),
    ]


def _dense(
    database: Database, scenario: Scenario, changes: int, middle: Callable[[], None]
) -> None:
    half = changes // 2
    for start in (0, half):
        if start:
            middle()
        bench_table.update_at_random(database, half, scenario.rows, _SIZE, start=start)
        database.execute("SELECT pg_log_standby_snapshot()")


def _sparse(
    database: Database, scenario: Scenario, changes: int, middle: Callable[[], None]
) -> None:
    _with_wide_rows(database, scenario, changes, middle, size=100)


def _spilled(
    database: Database, scenario: Scenario, changes: int, middle: Callable[[], None]
) -> None:
    """Each transaction has more than twice logical_decoding_work_mem (64 MB)."""
    _with_wide_rows(database, scenario, changes, middle, size=10_000)


def _with_wide_rows(
    database: Database, scenario: Scenario, changes: int, middle: Callable[[], None], *, size: int
) -> None:
    database.execute("DROP TABLE IF EXISTS wide")
    database.execute("CREATE TABLE wide (id int, filler text)")
    transactions = changes // size
    wide = _WIDE_PER_UPDATE * size
    between = max(1, _SNAPSHOT_BYTES // (wide * _WIDE))
    for number in range(transactions):
        if number == transactions // 2:
            middle()
        if number % between == 0:
            database.execute("SELECT pg_log_standby_snapshot()")
        with database.transaction():
            bench_table.update_in_order(database, size, scenario.rows, size, start=number * size)
            database.execute(
                f"INSERT INTO wide SELECT g, repeat('x', {_WIDE}) FROM generate_series(1, %s) g",
                (wide,),
            )


class NullConsumers:
    """pg_recvlogical to /dev/null over one backlog: once by one slot, once by two at a time.

    The second of the two slots is made in the middle of the backlog: what a segment has to do
    first, moving its copy of the slot there, costs them nothing.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._middle = ""

    def begin(self, database: Database) -> None:
        """Before the backlog is made."""
        for slot in (_ONE, _FIRST):
            _create(database, slot)

    def middle(self, database: Database) -> None:
        """Half of it is made."""
        self._middle = self._scenario.wal_position()
        _create(database, _SECOND)

    def measure(self, database: Database) -> tuple[float, float]:
        """Seconds that one takes, and two; the slots are gone then."""
        end = self._scenario.wal_position()
        one = self._seconds({_ONE: end})
        two = self._seconds({_FIRST: self._middle, _SECOND: end})
        for slot in (_ONE, _FIRST, _SECOND):
            database.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        return one, two

    def _seconds(self, ends: dict[str, str]) -> float:
        began = time.perf_counter()
        with ExitStack() as running:
            for slot, end in ends.items():
                command = self._scenario.recvlogical(slot, f"--endpos={end}", "--file=/dev/null")
                running.enter_context(subprocess.Popen(command))
        return time.perf_counter() - began


def _create(database: Database, slot: str) -> None:
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
