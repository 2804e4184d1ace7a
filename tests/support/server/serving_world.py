"""A real store, written by the test, behind a real gRPC server; only PostgreSQL is left out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import orjson

from laredo_fanout.serving.options import ListenerOptions, ServingOptions, ServingTableOptions
from laredo_fanout.serving.ports import ClientInfo, ClientState, TooManyClients
from laredo_fanout.serving.server import serve
from laredo_fanout.snapshots import Retention, take
from laredo_fanout.store.environment import SourceIdentity
from laredo_fanout.store.rows import TableChanges
from laredo_fanout.store.writer import Store
from laredo_fanout.wire import replication_pb2 as wire
from laredo_fanout.wire.replication_pb2_grpc import LaredoReplicationServiceStub
from laredo_model.column import Column
from laredo_model.line import Action
from laredo_model.position import History
from tests.support.processes import PATIENCE_S

HISTORY = History(7300000000000000001, 1, 16384)
COLUMNS = (
    Column("id", "int8", nullable=False, ordinal=1, key_ordinal=1),
    Column("name", "text", ordinal=2),
    Column("price", "numeric", 655366, ordinal=3),
    Column("tags", "jsonb", ordinal=4),
)
USERS = "public.users"


def line(number: int, name: str | None = "n", price: str = "1.00", tags: Any = None) -> bytes:
    """A row of COLUMNS."""
    return orjson.dumps({"id": number, "name": name, "price": price, "tags": tags})


def with_tokens(file: Path, text: str) -> ListenerOptions:
    """A listener for those alone who have a token of this file."""
    file.write_text(text)
    return ListenerOptions("127.0.0.1", 0, tokens_file=file, drain_grace_s=0.2)


def rows(start: int, stop: int) -> list[bytes]:
    return [line(number, f"name {number}") for number in range(start, stop)]


class Wakeups:
    """Wake-ups within one event loop."""

    def __init__(self) -> None:
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def current(self) -> asyncio.Future[None]:
        return self._future

    def notify(self) -> None:
        woken, self._future = self._future, asyncio.get_running_loop().create_future()
        if not woken.done():
            woken.set_result(None)


class Registry:
    """A registry within one process that remembers what it was told."""

    def __init__(self, max_clients: int = 1000) -> None:
        self.max_clients = max_clients
        self.leases: list[Lease] = []
        self.closed: list[tuple[str, str]] = []
        self.pins: list[tuple[str, int | None]] = []

    async def register(self, info: ClientInfo) -> Lease:
        if len(self.leases) >= self.max_clients:
            raise TooManyClients(f"max_clients {self.max_clients}")
        self.leases.append(Lease(self, info))
        return self.leases[-1]

    async def clients(self, table: str) -> list[ClientState]:
        return [lease.state for lease in self.leases if lease.state.info.table == table]


class Lease:
    def __init__(self, registry: Registry, info: ClientInfo) -> None:
        self._registry = registry
        self.state = ClientState(info, 0, 0, "connecting")

    def update(self, *, sequence: int, depth: int, state: str) -> None:
        self.state = ClientState(self.state.info, sequence, depth, state)

    async def pin(self, table_id: int, after_sequence: int) -> None:
        self._registry.pins.append((self.state.info.client_id, after_sequence))

    def unpin(self) -> None:
        self._registry.pins.append((self.state.info.client_id, None))

    def close(self, reason: str) -> None:
        self._registry.leases.remove(self)
        self._registry.closed.append((self.state.info.client_id, reason))


@dataclass
class Writer:
    """The ingest side: tables made live, transactions committed, each at its own position."""

    store: Store
    wakeups: Wakeups
    position: int = 0x1000
    time_us: int = 1_700_000_000_000_000
    ids: dict[str, int] = field(default_factory=dict)

    def begin(self) -> None:
        with self.store.transaction() as txn:
            txn.set_source(SourceIdentity(HISTORY, "laredo", "laredo", "token"))

    def add(self, table: str = USERS, columns: Sequence[Column] = COLUMNS) -> int:
        """A table whose copy has begun."""
        schema, name = table.split(".")
        with self.store.transaction() as txn:
            self.ids[table] = txn.add_table(schema, name, 1, columns).id
        return self.ids[table]

    def publish(
        self, lines: Sequence[bytes] = (), table: str = USERS, columns: Sequence[Column] = COLUMNS
    ) -> int:
        """A table that was copied: these are its rows."""
        table_id = self.add(table, columns)
        with self.store.transaction() as txn:
            if lines:
                txn.fill(table_id, [key_of(each) for each in lines], list(lines))
            txn.publish(table_id, self.step(), self.time_us)
            txn.set_position(self.position, self.time_us)
        self.wakeups.notify()
        return table_id

    def step(self) -> int:
        self.position += 0x10
        self.time_us += 1_000
        return self.position

    def commit(self, *changes: tuple[Action, bytes], table: str = USERS) -> int:
        """One PostgreSQL transaction; each change is an action and a line, or the key to delete."""
        return self.commit_all([changes], table=table)

    def commit_all(
        self,
        transactions: Sequence[Sequence[tuple[Action, bytes]]],
        table: str = USERS,
        *,
        more: bool = False,
    ) -> int:
        """Several PostgreSQL transactions in one durable step; the last one's position.

        `more`: transactions that don't concern the table follow in the same step.
        """
        batch = TableChanges()
        for transaction in transactions:
            batch.positions.append(self.step())
            batch.times_us.append(self.time_us)
            batch.counts.append(len(transaction))
            for action, given in transaction:
                batch.actions.append(action)
                removes = action in (Action.DELETE, Action.TRUNCATE)
                batch.keys.append(given if removes else key_of(given))
                batch.lines.append(b"" if removes else given)
        with self.store.transaction() as txn:
            txn.apply(self.ids[table], batch)
            txn.set_position(self.step() if more else self.position, self.time_us)
        self.wakeups.notify()
        return self.position

    def advance(self) -> int:
        """A transaction that touched no table."""
        with self.store.transaction() as txn:
            txn.set_position(self.step(), self.time_us)
        self.wakeups.notify()
        return self.position

    @property
    def sequence(self) -> int:
        """The newest one of the table users."""
        return self.store.tables[self.ids[USERS]].sequence

    def verify(self, position: int | None = None) -> None:
        """A catalog check has found no silent DDL up to here, or to the writer's position."""
        with self.store.transaction() as txn:
            txn.set_verified(self.ids[USERS], self.position if position is None else position)
        self.wakeups.notify()

    def suspect(self, start: int) -> None:
        """Nothing of the table users beyond ``start`` is known to be the source's."""
        with self.store.transaction() as txn:
            txn.set_verified(self.ids[USERS], start)
            txn.begin_suspect_range(self.ids[USERS], "a partition was detached or dropped")

    def repair(self, truth: list[bytes]) -> int:
        """A re-copy of the table users found that these are the rows; where it ended."""
        schema, name = USERS.split(".")
        with self.store.transaction() as txn:
            copied = txn.add_table(schema, name, 1, COLUMNS)
            txn.fill(copied.id, [key_of(each) for each in truth], truth)
            txn.publish_differences(copied.id, self.step(), self.time_us)
            txn.set_position(self.position, self.time_us)
        self.wakeups.notify()
        return self.position

    def take_snapshot(self, directory: Path) -> str:
        """Id of a snapshot of the table users, which is in the directory now."""
        keep = Retention(keep_count=10, max_age_s=1e9)
        return take(self.store.reader(), USERS, directory, keep).snapshot.snapshot_id

    def prune(self, keep: int, table: str = USERS) -> None:
        self.store.prune(self.ids[table], keep, 1e9, self.time_us / 1e6)


def key_of(row: bytes) -> bytes:
    return str(orjson.loads(row)["id"]).encode()


@dataclass
class World:
    """Objects that a test uses while the server runs."""

    writer: Writer
    registry: Registry
    wakeups: Wakeups
    port: int
    drain: asyncio.Event
    serving: asyncio.Task[None]
    channels: list[grpc.aio.Channel] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def channel(self, **options: int) -> grpc.aio.Channel:
        pairs = [(f"grpc.{name}", value) for name, value in options.items()]
        pairs += [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        self.channels.append(grpc.aio.insecure_channel(self.address, options=pairs))
        return self.channels[-1]

    def stub(self, **options: int) -> Any:
        return LaredoReplicationServiceStub(self.channel(**options))

    def sync(self, metadata: Any = None, **request: Any) -> Stream:
        """A stream; schema, table and client_id have defaults, `batch` asks for the extension."""
        if request.pop("batch", False):
            request["capabilities"] = ["batch/json.v1"]
        asked = {"schema": "public", "table": "users", "client_id": "test", **request}
        return Stream(self.stub().Sync(wire.SyncRequest(**asked), metadata=metadata))

    async def greeted(self, **asked: Any) -> Stream:
        """A stream as :meth:`sync` makes it, whose handshake has come."""
        stream = self.sync(**asked)
        await stream.next("handshake")
        return stream

    def sync_by_tls(self, files: Path, client: str | None) -> Stream:
        """A stream by TLS, with this certificate of ``files``, or none."""
        pair = (None, None)
        if client:
            pair = ((files / f"{client}.key").read_bytes(), (files / f"{client}.pem").read_bytes())
        credentials = grpc.ssl_channel_credentials((files / "ca.pem").read_bytes(), *pair)
        channel = grpc.aio.secure_channel(f"localhost:{self.port}", credentials)
        self.channels.append(channel)
        request = wire.SyncRequest(schema="public", table="users", client_id="tls")
        return Stream(LaredoReplicationServiceStub(channel).Sync(request, wait_for_ready=False))


class Stream:
    """A client's end of a Sync call."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def next(self, kind: str | None = None, timeout: float = PATIENCE_S) -> Any:
        """The next message, unwrapped; it must be of this kind. Heartbeats are passed over."""
        while True:
            response = await asyncio.wait_for(self.call.read(), timeout)
            if response is grpc.aio.EOF:
                code, details = await self.call.code(), await self.call.details()
                raise AssertionError(f"the stream ended: {code} {details}")
            found = response.WhichOneof("message")
            if found == "heartbeat" and kind != "heartbeat":
                continue
            if kind is not None:
                assert found == kind, response
            return getattr(response, found)

    async def next_of_any(self, timeout: float = PATIENCE_S) -> Any:
        """The next message, unwrapped, heartbeats included."""
        response = await asyncio.wait_for(self.call.read(), timeout)
        return getattr(response, response.WhichOneof("message"))

    async def snapshot(self) -> tuple[Any, list[bytes], Any]:
        """Begin, all lines of a batch session, end."""
        begin = await self.next("snapshot_begin")
        lines: list[bytes] = []
        while True:
            message = await self.next()
            if isinstance(message, wire.SnapshotEnd):
                return begin, lines, message
            assert len(message.keys) == len(message.lines)
            lines += message.lines

    async def base_snapshot(self) -> tuple[Any, list[Any], Any]:
        """Begin, all Structs of a base session, end."""
        begin = await self.next("snapshot_begin")
        structs = []
        while True:
            message = await self.next()
            if isinstance(message, wire.SnapshotEnd):
                return begin, structs, message
            structs.append(message.row)

    async def ends(self, timeout: float = PATIENCE_S) -> tuple[grpc.StatusCode, str]:
        """Read to the end; the status."""
        async with asyncio.timeout(timeout):
            try:
                while await self.call.read() is not grpc.aio.EOF:
                    pass
            except grpc.aio.AioRpcError:
                pass
            return await self.call.code(), await self.call.details()

    def cancel(self) -> None:
        self.call.cancel()


@asynccontextmanager
async def running(
    path: Path,
    *,
    table: ServingTableOptions | None = None,
    listener: ListenerOptions | None = None,
    max_clients: int = 1000,
    names: Sequence[str] = (USERS,),
    users: int | None = None,
    **serving: Any,
) -> AsyncIterator[World]:
    """A server over a fresh store; `serving` is told to `serve`.

    `users`: number of rows of the table users, which is live then.
    """
    wakeups, registry, drain = Wakeups(), Registry(max_clients), asyncio.Event()
    options = ServingOptions(
        listener or ListenerOptions("127.0.0.1", 0, drain_grace_s=0.5),
        {name: table or ServingTableOptions() for name in names},
    )
    with Store.open(path, max_size=1 << 30) as store:
        writer = Writer(store, wakeups)
        writer.begin()
        listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(
            serve(
                options,
                store.reader(),
                wakeups,
                registry,
                drain,
                on_listening=listening.set_result,
                **serving,
            )
        )
        await asyncio.wait({listening, task}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        world = World(writer, registry, wakeups, listening.result(), drain, task)
        if users is not None:
            writer.publish(rows(0, users))
        try:
            yield world
        finally:
            for channel in world.channels:
                await channel.close()
            drain.set()
            await task
