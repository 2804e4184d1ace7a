"""FanoutClient and its asyncio twin against the real server."""

import asyncio
import threading
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

import laredo_fanout.client as library
from laredo_archive import ArchiveError
from laredo_fanout.client import (
    AsyncFanoutClient,
    Backoff,
    BadEndpoint,
    BadField,
    BadTableName,
    ClientError,
    ClientStopped,
    FanoutClient,
    NotReadyInTime,
    TableNotFound,
    equals,
)
from laredo_fanout.client.table.local_snapshot import LocalSnapshot, SnapshotFile
from laredo_fanout.client.table.replica import ReplicaPosition
from laredo_fanout.client.table.rows import Row, parse
from laredo_model import position as positions
from laredo_model.column import Column
from laredo_model.line import Action
from tests.fanout.client.kept_copy import Server, row
from tests.fanout.client.real_server import (
    COLUMNS,
    HISTORY,
    TABLE,
    Source,
    key_of,
    line_of,
    serving,
)
from tests.support.processes import PATIENCE_S, until, wait_until

INSERT, UPDATE, DELETE, TRUNCATE = Action.INSERT, Action.UPDATE, Action.DELETE, Action.TRUNCATE
DOCUMENT = Path(__file__).parents[3] / "docs/clients.md"
QUICK = Backoff(initial=0.01, maximum=0.05)


def test_the_example_of_the_documentation(server: Server, tmp_path: Path) -> None:
    client = FanoutClient(
        server.address,
        TABLE,
        client_id="myapp-1",
        local_snapshot_path=tmp_path / "cache",
        lookup_fields=("instance", "key"),
        indexes={"by_instance": ("instance",)},
        filters=[equals("tenant", "acme")],
    )
    client.start()
    client.await_ready(PATIENCE_S)
    assert client.lookup("a", "x") == row("a", "x", "acme", 1)
    assert client.lookup("b", "x") is None  # another tenant's
    assert client.lookup_index("by_instance", "a") == [
        row("a", "x", "acme", 1),
        row("a", "y", "acme", 2),
    ]
    assert len(client) == 2
    assert client.position == server.source.position
    assert client.sequence is not None
    client.stop()
    assert (tmp_path / "cache").exists()


def test_all_rows_are_of_one_moment(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """The documentation's example, and what the rows are whatever comes after the call."""
    section = DOCUMENT.read_text().partition("## All rows\n")[2]
    example = section.partition("```python\n")[2].partition("```")[0]
    server.source.write([(UPDATE, "b", "x", "zeta", 3)])
    exec(example.replace("localhost:4002", server.address).replace("public.config_document", TABLE))
    assert f"6 at {server.source.position}" in capsys.readouterr().out.splitlines()
    assert list(FanoutClient(server.address, TABLE).rows()) == []  # never started
    with server.client() as client:
        before, position = client.rows(), client.position
        some = [next(before)]
        left_alone = client.rows()
        server.source.write(
            [(UPDATE, "a", "x", "acme", 50), (DELETE, "a", "y", "", 0)],
            [(TRUNCATE, "", "", "", 0), (INSERT, "n", "n", "t", 9)],
        )
        wait_until(lambda: client.position == server.source.position, "up to date")
        del left_alone
        assert [row["size"] for row in client.rows()] == [9]
        assert sorted(row["size"] for row in [*some, *before]) == [1, 2, 3]
        assert before.position == position
    assert [row["size"] for row in client.rows()] == [9]  # stopped


def test_all_rows_as_an_arrow_table(server: Server) -> None:
    assert FanoutClient(server.address, TABLE).to_arrow().num_rows == 0  # never started
    with server.client() as client:
        table = client.to_arrow()
        assert table.schema.names == [column.name for column in COLUMNS]
        assert table.schema.field("size").type == pa.int64()
        assert in_order(table.to_pylist()) == in_order(client.rows())
        at = positions.text(server.source.position).encode()
        assert table.schema.metadata == {b"laredo.position": at}
        server.source.write([(UPDATE, "a", "x", "acme", 50)])
        wait_until(lambda: client.position == server.source.position, "up to date")
        assert 50 in client.to_arrow()["size"].to_pylist()
        assert 50 not in table["size"].to_pylist()
        with pytest.raises(ArchiveError, match="special_values"):
            client.to_arrow(special_values="none")


def in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=str)


def test_changes_arrive_and_listeners_hear_them(server: Server) -> None:
    heard: list[tuple[Row | None, Row | None]] = []
    with server.client() as client:
        stop_listening = client.listen(lambda old, new: heard.append((old, new)))
        server.source.write(
            [(UPDATE, "a", "x", "acme", 5), (DELETE, "a", "y", "", 0)],
            [(INSERT, "c", "x", "acme", 7)],
        )
        wait_until(lambda: client.position == server.source.position, "up to date")
        assert client.lookup("a", "x") == row("a", "x", "acme", 5)
        assert client.lookup("a", "y") is None
        expected = [
            (row("a", "x", "acme", 1), row("a", "x", "acme", 5)),
            (row("a", "y", "acme", 2), None),
            (None, row("c", "x", "acme", 7)),
        ]
        wait_until(lambda: len(heard) == len(expected), "heard")
        assert heard == expected
        stop_listening()
        server.source.write([(TRUNCATE, "", "", "", 0)])
        wait_until(lambda: len(client) == 0, "no row")
    assert heard == expected


def test_a_listener_may_stop_the_client_and_look_up(server: Server) -> None:
    done = threading.Event()
    client = FanoutClient(server.address, TABLE)

    def stop(old: Row | None, new: Row | None) -> None:
        assert client.lookup("n", "1") == new
        client.stop()
        done.set()

    client.start()
    client.await_ready(PATIENCE_S)
    client.listen(stop)
    server.source.write([(INSERT, "n", "1", "t", 1)])
    assert done.wait(PATIENCE_S)


@pytest.mark.parametrize("call", ["rows", "to_arrow", "await_ready"])
def test_a_listener_is_told_that_it_would_wait_for_itself(server: Server, call: str) -> None:
    """In the middle of a transaction that comes in parts, or of the first snapshot."""
    outcomes: list[object] = []
    client = FanoutClient(server.address, TABLE)

    def listener(old: Row | None, new: Row | None) -> None:
        try:
            outcomes.append(getattr(client, call)(3.0))
        except ClientError as error:
            outcomes.append(error)

    if call == "await_ready":
        client.listen(listener)
    with client:
        client.await_ready(PATIENCE_S)
        client.listen(listener)
        server.source.write([(INSERT, "n", str(number), "t", number) for number in range(20_000)])
        wait_until(lambda: outcomes, "it has asked")
    assert type(outcomes[0]) is ClientError and call in str(outcomes[0])


async def test_an_asynchronous_listener_is_told_too(port: int, source: Source) -> None:
    outcomes: list[object] = []
    client = AsyncFanoutClient(f"127.0.0.1:{port}", TABLE)

    async def listener(old: Row | None, new: Row | None) -> None:
        try:
            outcomes.append([row async for row in client.rows(3.0)])
        except ClientError as error:
            outcomes.append(error)

    async with client:
        await client.await_ready(PATIENCE_S)
        await client.listen(listener)
        source.write([(INSERT, "n", str(number), "t", number) for number in range(20_000)])
        await until(lambda: outcomes)
    assert type(outcomes[0]) is ClientError


def test_resumes_after_the_server_was_away(server: Server) -> None:
    heard: list[Row | None] = []
    with server.client(backoff=QUICK) as client:
        client.listen(lambda old, new: heard.append(new))
        server.source.write([(INSERT, "n", "1", "t", 1)])
        wait_until(lambda: len(heard) == 1, "heard")
        server.stop()
        server.source.write([(INSERT, "n", "2", "t", 2)])
        server.start()
        server.source.write([(INSERT, "n", "3", "t", 3)])
        wait_until(lambda: len(heard) >= 3, "heard")
        assert heard == [row("n", str(n), "t", n) for n in (1, 2, 3)]
        assert client.position == server.source.position


def test_a_new_snapshot_is_heard_as_its_differences(server: Server) -> None:
    """The journal no longer reaches back to where the client was."""
    heard: list[tuple[Row | None, Row | None]] = []
    with server.client(backoff=QUICK, indexes={"t": ("tenant",)}) as client:
        client.listen(lambda old, new: heard.append((old, new)))
        server.stop()
        server.source.write(
            [(UPDATE, "a", "x", "acme", 50)],
            [(DELETE, "a", "y", "", 0)],
            [(INSERT, "z", "z", "zeta", 1)],
        )
        server.source.forget_journal()
        server.start()
        wait_until(lambda: len(heard) == 3, "heard")
        assert sorted(heard, key=str) == sorted(
            [
                (row("a", "y", "acme", 2), None),
                (row("a", "x", "acme", 1), row("a", "x", "acme", 50)),
                (None, row("z", "z", "zeta", 1)),
            ],
            key=str,
        )
        assert [found["key"] for found in client.lookup_index("t", "acme")] == ["x"]


def test_a_schema_change_brings_columns_and_rows_in_the_same_stream(server: Server) -> None:
    with server.client(backoff=QUICK) as client:
        columns = (*COLUMNS, Column("extra", "int4", ordinal=5))
        line = line_of("a", "x", "acme", 1)[:-1] + b',"extra":7}'
        server.source.recopy(columns, {key_of("a", "x"): line})
        wait_until(lambda: len(client) == 1, "its rows")
        assert client.lookup("a", "x") == parse(line)
        assert [column.name for column in client.columns][-1] == "extra"
        assert client.disconnects == 0


def test_the_local_snapshot_makes_a_restart_a_delta(server: Server, tmp_path: Path) -> None:
    """Its rows are there while the server is away."""
    path = tmp_path / "cache"
    with server.client(local_snapshot_path=path) as client:
        before = client.position
    server.stop()
    server.source.write([(INSERT, "n", "1", "t", 1)])
    heard: list[tuple[Row | None, Row | None]] = []
    again = FanoutClient(server.address, TABLE, local_snapshot_path=path, backoff=QUICK)
    again.listen(lambda old, new: heard.append((old, new)))
    with capture_logs() as logs, again:
        wait_until(lambda: len(again) == 3, "its rows")
        assert again.lookup("a", "x") == row("a", "x", "acme", 1)
        with pytest.raises(NotReadyInTime, match="wasn't ready within"):
            again.await_ready(0.2)
        server.start()
        again.await_ready(PATIENCE_S)
        wait_until(lambda: again.position == server.source.position, "up to date")
        assert len(again) == 4
        assert before is not None and again.position > before
        wait_until(lambda: len(heard) == 4, "heard")  # the three saved ones, then the new one
        assert heard[-1] == (None, row("n", "1", "t", 1))
    assert [entry["mode"] for entry in logs if entry["event"] == "connected"] == ["DELTA"]


def test_a_local_snapshot_that_cannot_be_used_is_ignored_with_a_log_line(
    server: Server, tmp_path: Path
) -> None:
    """A damaged one, and one from before the table got an indexed column."""
    damaged, old = tmp_path / "damaged", tmp_path / "old"
    damaged.write_bytes(b'{"format":"something else"}\n')
    saved = LocalSnapshot(ReplicaPosition(), COLUMNS[:2], [b'["a","x"]'], [b'{"instance":"a"}'])
    SnapshotFile(old, TABLE, ()).save(saved)
    for path, reason in ((damaged, str(damaged)), (old, "no column 'tenant'")):
        with (
            capture_logs() as logs,
            server.client(local_snapshot_path=path, indexes={"t": ("tenant",)}) as client,
        ):
            assert len(client) == 3
            assert row("a", "x", "acme", 1) in client.lookup_index("t", "acme")
        warned = [entry for entry in logs if "local snapshot not used" in entry["event"]]
        assert len(warned) == 1 and reason in warned[0]["reason"]


def test_stopping_keeps_the_rows_and_starting_resumes(server: Server) -> None:
    client = FanoutClient(server.address, TABLE)
    client.start()
    client.await_ready(PATIENCE_S)
    client.stop()
    client.stop()
    server.source.write([(INSERT, "n", "1", "t", 1)])
    assert len(client) == 3
    with pytest.raises(ClientStopped):
        client.await_ready(1)
    with client:
        wait_until(lambda: len(client) == 4, "its rows")


def test_look_ups_while_everything_changes(server: Server) -> None:
    """Readers on threads never see a row that an index promised missing, nor half a transaction."""
    failures: list[BaseException] = []
    heard: set[int] = set()
    stop = threading.Event()
    with server.client(indexes={"t": ("tenant",)}) as client:

        def of_two() -> int:
            return sum(row["size"] for row in client.rows() if row["instance"] == "a")

        def read() -> None:
            try:
                while not stop.is_set():
                    for found in client.lookup_index("t", "busy"):
                        assert found["tenant"] == "busy"
                    client.lookup("a", "x")
                    assert of_two() == 3
            except BaseException as failure:
                failures.append(failure)
                raise

        client.listen(lambda old, new: heard.add(of_two()))
        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for number in range(50):
            size, part = number % 7, number % 4
            server.source.write(
                [(INSERT, "n", str(size), "busy" if number % 2 else "idle", number)],
                [(DELETE, "n", str((size + 3) % 7), "", 0)],
                [(UPDATE, "a", "x", "acme", part), (UPDATE, "a", "y", "acme", 3 - part)],
            )
        wait_until(lambda: client.position == server.source.position and heard, "up to date")
        stop.set()
        for reader in readers:
            reader.join()
    assert not failures and heard == {3}


def test_wrong_arguments_are_told_before_anything_is_sent() -> None:
    servers: list[tuple[str | list[str], str]] = [
        ("localhost", "expected host:port"),
        (["localhost:1", "localhost"], "expected host:port"),
        (["localhost:1", "localhost:1"], "listed twice"),
        ([], "empty"),
    ]
    for given, said in servers:
        with pytest.raises(BadEndpoint, match=said):
            FanoutClient(given, TABLE)
    with pytest.raises(BadTableName, match=r"expected schema\.table"):
        FanoutClient("localhost:1", "users")
    with pytest.raises(BadTableName, match=r"expected schema\.table"):
        FanoutClient("localhost:1", [TABLE])  # type: ignore[arg-type]
    with pytest.raises(ClientStopped, match="start"):
        FanoutClient("localhost:1", TABLE).await_ready(1)


def test_what_cannot_be_followed_ends_the_wait(server: Server) -> None:
    columns = {"c": ("colour",)}
    for client, error, said, patience in (
        (FanoutClient(server.address, "public.nothing"), TableNotFound, "nothing", PATIENCE_S),
        (
            FanoutClient(server.address, TABLE, indexes=columns),
            BadField,
            "no column 'colour'",
            PATIENCE_S,
        ),
        (FanoutClient("127.0.0.1:1", TABLE, backoff=QUICK), NotReadyInTime, r"127\.0\.0\.1:1", 0.3),
    ):
        with client, pytest.raises(error, match=said):
            client.await_ready(patience)


async def test_asyncio_twin(port: int, source: Source, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    heard: list[Row | None] = []

    async def listener(old: Row | None, new: Row | None) -> None:
        await asyncio.sleep(0)
        heard.append(new)

    async with AsyncFanoutClient(
        f"127.0.0.1:{port}",
        TABLE,
        lookup_fields=("instance", "key"),
        indexes={"by_instance": ("instance",)},
        local_snapshot_path=path,
    ) as client:
        await client.await_ready(PATIENCE_S)
        assert await client.lookup("a", "x") == row("a", "x", "acme", 1)
        assert len(await client.lookup_index("by_instance", "a")) == 2
        assert len([row async for row in client.rows()]) == len(client) == 3
        stop_listening = await client.listen(listener)
        changes = client.changes()
        source.write([(UPDATE, "a", "x", "acme", 6)])
        async with asyncio.timeout(PATIENCE_S):
            change = await anext(changes)
        assert change.old == row("a", "x", "acme", 1)
        assert change.new == row("a", "x", "acme", 6)
        assert (change.position, change.sequence) == (client.position, client.sequence)
        await until(lambda: heard == [row("a", "x", "acme", 6)])
        stop_listening()
        assert str(client._replica.reached.history) == str(HISTORY)
    assert path.exists()


async def test_changes_end_when_the_client_stops(port: int) -> None:
    client = AsyncFanoutClient(f"127.0.0.1:{port}", TABLE)
    await client.start()
    await client.await_ready(PATIENCE_S)
    changes = client.changes()
    await client.stop()
    assert [change async for change in changes] == []


async def test_changes_raise_what_ended_the_client(port: int) -> None:
    client = AsyncFanoutClient(f"127.0.0.1:{port}", "public.nothing")
    changes = client.changes()
    async with client:
        with pytest.raises(TableNotFound):
            async with asyncio.timeout(PATIENCE_S):
                await anext(changes)


async def test_a_dropped_reader_of_changes_holds_nobody_up(
    port: int, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laredo_fanout.client.table.listening._WAITING_AT_MOST", 3)
    async with AsyncFanoutClient(f"127.0.0.1:{port}", TABLE) as client:
        await client.await_ready(PATIENCE_S)
        kept, dropped = client.changes(), client.changes()
        source.write([(INSERT, "n", str(number), "t", number) for number in range(50)])
        await until(lambda: len(client) == 53)
        del dropped
        async with asyncio.timeout(PATIENCE_S):
            got = [await anext(kept) for _ in range(50)]
    assert [change.new for change in got] == [row("n", str(n), "t", n) for n in range(50)]


async def test_a_server_that_drains_lets_go_and_takes_back(source: Source) -> None:
    """GoAway in the middle of a workload: no change is lost, none comes twice."""
    heard: list[int] = []
    async with AsyncExitStack() as stack:
        first = AsyncExitStack()
        port = await first.enter_async_context(serving(source, grace=3600))
        client = AsyncFanoutClient(f"127.0.0.1:{port}", TABLE, backoff=QUICK)
        await stack.enter_async_context(client)
        await client.await_ready(PATIENCE_S)
        await client.listen(lambda old, new: heard.append(new["size"] if new else -1))
        for number in range(20):
            source.write([(INSERT, "n", str(number), "t", number)])
        await asyncio.wait_for(first.aclose(), PATIENCE_S)  # well before the grace is over
        for number in range(20, 30):
            source.write([(INSERT, "n", str(number), "t", number)])
        await stack.enter_async_context(serving(source, port))
        await until(lambda: len(heard) >= 30)
    assert heard == list(range(30))


def test_public_names() -> None:
    """Names that applications may import: a removed one breaks them, another one is a promise."""
    assert sorted(library.__all__) == sorted(PUBLIC.split())
    for name in library.__all__:
        assert hasattr(library, name)


METHODS = ["start", "await_ready", "lookup", "lookup_index", "rows", "listen", "follow", "stop"]
VALUES = ["position", "sequence", "columns", "error", "listener_errors", "disconnects", "tables"]


@pytest.mark.parametrize("name", [*METHODS, "__len__", *VALUES])
def test_the_twins_have_the_same_documented_names(name: str) -> None:
    for client in (FanoutClient, AsyncFanoutClient):
        assert getattr(client, name).__doc__


PUBLIC = """
    AsyncFanoutClient AsyncRowIterator Backoff BadEndpoint BadField BadTableName Changes
    ClientError ClientStopped Crowded Endpoint Event FanoutClient Filter GaveUp GoAway
    Handshake Heartbeat InvalidRequest LocalSnapshotUnusable Mode NotAReplicationServer
    NotReadyInTime NotUnique Observer PermissionDenied ProtocolViolation RawJson RowChange
    RowIterator SchemaChange ServerUnavailable SnapshotBegin SnapshotEnd SnapshotRows
    StreamBroken StreamError Subscription SyncOptions TableIndex TableNotFound TableNotReady
    TableStatus Tls TransactionPart Unauthenticated equals is_in open_stream prefix
    table_status
"""
