"""The real serving code over a real store that the test writes: only PostgreSQL is left out.

It runs on a thread of its own, so that a test may wait for the writer's real
process. What every table holds at every position is noted, apart from the store.
"""

import asyncio
import threading
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from laredo_fanout.serving.options import ListenerOptions, ServingOptions, ServingTableOptions
from laredo_fanout.serving.server import serve
from laredo_fanout.store.environment import SourceIdentity
from laredo_fanout.store.rows import TableChanges
from laredo_fanout.store.transaction import Transaction
from laredo_fanout.store.writer import Store
from laredo_model.column import Column
from laredo_model.line import Action
from laredo_model.position import History
from tests.support.processes import PATIENCE_S, free_port
from tests.support.server.serving_world import Registry

HISTORY = History(7300000000000000001, 1, 16384)
COLUMNS = (
    Column("id", "int8", nullable=False, ordinal=1, key_ordinal=1),
    Column("name", "text", ordinal=2),
)
TIME_US = 1_700_000_000_000_000

Result = TypeVar("Result")
Change = tuple[Action, int, str]
State = dict[bytes, bytes]


def put(number: int, name: str) -> Change:
    """INSERT or UPDATE, whichever it is."""
    return (Action.UPDATE, number, name)


def delete(number: int) -> Change:
    return (Action.DELETE, number, "")


TRUNCATE: Change = (Action.TRUNCATE, 0, "")


def line(number: int, name: str) -> bytes:
    return f'{{"id":{number},"name":"{name}"}}'.encode()


def rows(start: int, stop: int) -> State:
    return {b"%d" % number: line(number, f"row {number}") for number in range(start, stop)}


class Wakeups:
    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    def current(self) -> asyncio.Future[None]:
        if self._future is None or self._future.done():
            self._future = asyncio.get_running_loop().create_future()
        return self._future

    def notify(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class Served:
    """A store and a server on it. Positions go up by 16 with every transaction of any table."""

    def __init__(self, path: Path, *, tokens_file: Path | None = None) -> None:
        self.port = free_port()
        self.registry = Registry()
        self._store = Store.open(path, max_size=1 << 30)
        self._position = 0x1000
        self._ids: dict[str, int] = {}
        self._state: dict[str, State] = {}
        self._notes: dict[str, list[tuple[int, State]]] = {}
        self._tokens_file = tokens_file
        self.looks_by_itself = True
        """True if each step is verified at once, as if PostgreSQL's catalog were checked."""
        self._wakeups = Wakeups()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._drain: asyncio.Event | None = None
        self._serving: Future[None] | None = None

    def __enter__(self) -> "Served":
        self._thread.start()
        self.set_history(HISTORY)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._store.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def position(self) -> int:
        return self._position

    def start(self, grace: float = 0.2) -> None:
        """Serve, on the same port every time."""
        listening: Future[int] = Future()

        async def run() -> None:
            self._drain = asyncio.Event()
            options = ServingOptions(
                ListenerOptions(
                    "127.0.0.1",
                    self.port,
                    drain_grace_s=grace,
                    behind_wait_s=0.2,
                    tokens_file=self._tokens_file,
                ),
                {name: ServingTableOptions(heartbeat_interval_s=0.2) for name in self._ids},
            )
            with self._store.reader() as reader:
                await serve(
                    options,
                    reader,
                    self._wakeups,
                    self.registry,
                    self._drain,
                    on_listening=listening.set_result,
                )

        self._serving = self._submit(run())
        listening.result(PATIENCE_S)

    def stop(self) -> None:
        """Be away."""
        if self._serving is not None and self._drain is not None:
            self._loop.call_soon_threadsafe(self._drain.set)
            self._serving.result(PATIENCE_S)
            self._serving = None

    def clients(self) -> list[str]:
        """Ids of connected clients."""
        return [lease.state.info.client_id for lease in self.registry.leases]

    def add(
        self, table: str, state: State | None = None, columns: tuple[Column, ...] = COLUMNS
    ) -> None:
        """A table that was copied; again under the same name it is a re-copy with other columns."""
        schema, name = f"public.{table}".split(".")

        def work() -> None:
            with self._store.transaction() as txn:
                table_id = txn.add_table(schema, name, 1, columns).id
                if state:
                    txn.fill(table_id, list(state), list(state.values()))
                txn.publish(table_id, self._step(), TIME_US)
                self._end(txn)
            self._ids[f"public.{table}"] = table_id

        self._call(work)
        self._state[table] = dict(state or {})
        self._note(table)

    def commit(self, table: str, *changes: Change) -> int:
        """One transaction; its position."""
        return self.commit_all(table, [changes])

    def commit_all(self, table: str, transactions: Iterable[Sequence[Change]]) -> int:
        """Several transactions in one durable step; the last one's position."""
        batch = TableChanges()
        for transaction in transactions:
            batch.positions.append(self._step())
            batch.times_us.append(TIME_US + self._position)
            batch.counts.append(len(transaction))
            for change in transaction:
                self._apply(table, change, batch)
            self._note(table)

        def work() -> None:
            with self._store.transaction() as txn:
                txn.apply(self._ids[f"public.{table}"], batch)
                self._end(txn)

        self._call(work)
        return self._position

    def look(self) -> None:
        """Everything up to here is verified."""

        def work() -> None:
            with self._store.transaction() as txn:
                self._verify(txn)

        self._call(work)

    def advance(self) -> int:
        """A transaction that touched no table."""

        def work() -> None:
            with self._store.transaction() as txn:
                self._step()
                self._end(txn)

        self._call(work)
        return self._position

    def forget_journal(self, table: str) -> None:
        """Prune all but the newest transaction."""
        self._call(lambda: self._store.prune(self._ids[f"public.{table}"], 1, 0.0, 4e9))

    def set_history(self, history: History) -> None:
        def work() -> None:
            with self._store.transaction() as txn:
                txn.set_source(SourceIdentity(history, "laredo", "laredo", "token"))

        self._call(work)

    def state_at(self, table: str, position: int) -> State:
        """Rows of the table at ``position``."""
        notes = self._notes[table]
        return notes[bisect_right([at for at, _ in notes], position) - 1][1]

    def _apply(self, table: str, change: Change, batch: TableChanges) -> None:
        action, number, name = change
        state, key = self._state[table], b"%d" % number
        if action is Action.TRUNCATE:
            state.clear()
            key, row = b"", b""
        elif action is Action.DELETE:
            del state[key]
            row = b""
        else:
            action = Action.UPDATE if key in state else Action.INSERT
            state[key] = row = line(number, name)
        batch.actions.append(action)
        batch.keys.append(key)
        batch.lines.append(row)

    def _end(self, txn: Transaction) -> None:
        txn.set_position(self._position, TIME_US + self._position)
        if self.looks_by_itself:
            self._verify(txn)

    def _verify(self, txn: Transaction) -> None:
        for table_id, record in txn.tables.items():
            if record.live:
                txn.set_verified(table_id, self._position)

    def _note(self, table: str) -> None:
        self._notes.setdefault(table, []).append((self._position, dict(self._state[table])))

    def _step(self) -> int:
        self._position += 16
        return self._position

    def _call(self, work: Callable[[], object]) -> None:
        async def run() -> None:
            work()
            self._wakeups.notify()

        self._submit(run()).result(PATIENCE_S)

    def _submit(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)


@contextmanager
def serving(path: Path, *tables: str, count: int = 20) -> Iterator[Served]:
    """A server of these tables, each of so many rows."""
    with Served(path) as served:
        for table in tables:
            served.add(table, rows(0, count))
        served.start()
        yield served
