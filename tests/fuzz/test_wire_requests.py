"""Hostile calls on the whole server: every answer is a documented one, and nobody else notices."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import psutil
import pytest

from laredo_fanout.serving.service import SERVICE
from tests.fuzz import budget, hostile_calls
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, wait_until
from tests.support.server.fanout_program import Fanout, fanout, started
from tests.support.server.states import States

TOKEN = "the-token-of-the-test"
ROWS = 2000
AT_ONCE = 16
GROWTH_BYTES = 400 << 20

Code = grpc.StatusCode
DOCUMENTED = {
    Code.OK,
    Code.INVALID_ARGUMENT,
    Code.NOT_FOUND,
    Code.FAILED_PRECONDITION,
    Code.RESOURCE_EXHAUSTED,
    Code.UNAVAILABLE,
    Code.DATA_LOSS,
    Code.UNAUTHENTICATED,
    Code.PERMISSION_DENIED,
}
OUR_OWN = {Code.CANCELLED, Code.DEADLINE_EXCEEDED}
"""Codes with which a stream ends because the test leaves it."""


@pytest.fixture
def server(tmp_path: Path, database: Database) -> Iterator[Fanout]:
    """Two tables, of which the token may read one."""
    with database.connect() as owner:
        owner.execute("CREATE TABLE t (id int PRIMARY KEY, v text, j jsonb)")
        owner.execute("CREATE TABLE secret (id int PRIMARY KEY)")
        owner.execute(
            "INSERT INTO t SELECT i, repeat('v' || i, 20), '{}' FROM generate_series(1, %s) i",
            (ROWS,),
        )
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN} public.t\n")
    tokens.chmod(0o600)
    extra = f'fanout.grpc.tokens_file = "{tokens}"\n'
    tables = "{ table = t }, { table = secret }"
    made = fanout(tmp_path / "server", database, tables, extra)
    with started(made):
        yield made


@pytest.mark.timeout(3600)
async def test_hostile_calls_end_by_a_documented_code_and_harm_nobody(
    server: Fanout, database: Database
) -> None:
    await _honest_client_syncs(server, ROWS)
    processes, memory = _processes(server), _memory(server)
    codes: Counter[str] = Counter()
    for drawn in budget.inputs():
        with drawn as draw:
            async with grpc.aio.insecure_channel(
                f"127.0.0.1:{server.grpc_port}", options=[("grpc.use_local_subchannel_pool", 1)]
            ) as channel:
                calls = [_call(channel, random.Random(draw.random())) for _ in range(AT_ONCE)]
                calls.append(_raw_call(server, draw))
                codes.update(await asyncio.gather(*calls))
            assert _processes(server) == processes, server.program.tail()
    print(dict(codes))
    wait_until(lambda: server.status["fanout"]["clients"] == 0, "every client's slot is free")
    with database.connect() as owner:
        owner.execute("INSERT INTO t VALUES (%s, 'last', '{}')", (ROWS + 1,))
    await _honest_client_syncs(server, ROWS + 1)
    assert _processes(server) == processes, server.program.tail()
    assert not _failures(server)
    assert _memory(server) - memory < GROWTH_BYTES


async def _call(channel: grpc.aio.Channel, draw: random.Random) -> str:
    """One call; the code that it ended with."""
    method = draw.choice(hostile_calls.METHODS)
    data = hostile_calls.request(draw, method)
    metadata = hostile_calls.metadata(draw, TOKEN)
    path = f"/{SERVICE}/{method}"
    streams = method in ("Sync", "FetchSnapshot")
    try:
        if streams:
            call = channel.unary_stream(path)(data, timeout=PATIENCE_S, metadata=metadata)
            await _read_some(call, draw)
        else:
            call = channel.unary_unary(path)(data, timeout=PATIENCE_S, metadata=metadata)
            with suppress(grpc.aio.AioRpcError):
                await call
        code = await call.code()
    except ValueError:  # gRPC itself refuses to send such metadata
        return "unsent"
    allowed = DOCUMENTED | OUR_OWN if streams else DOCUMENTED
    assert code in allowed, f"{method} {data[:2000]!r} {metadata!r}: {code} {await call.details()}"
    return str(code.name)


async def _read_some(call: grpc.aio.UnaryStreamCall[bytes, bytes], draw: random.Random) -> None:
    """Leave at once, after some messages, or in the middle of one; a refusal ends it before."""
    if not draw.randrange(8):
        await asyncio.sleep(draw.random() / 100)  # not for luck: any moment is one to leave at
        call.cancel()
        return
    with suppress(grpc.aio.AioRpcError, TimeoutError):
        async with asyncio.timeout(draw.choice((0.01, 1))):
            for _ in range(draw.choice((1, 2, 40))):
                if await call.read() is grpc.aio.EOF:
                    return
    call.cancel()


async def _raw_call(server: Fanout, draw: random.Random) -> str:
    """A connection written by hand; whatever it is answered, the server goes on."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.grpc_port)
    with suppress(OSError, TimeoutError):
        writer.write(hostile_calls.raw_connection(draw, TOKEN))
        await writer.drain()
        await asyncio.wait_for(reader.read(1 << 16), draw.random() / 2)
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return "raw"


async def _honest_client_syncs(server: Fanout, rows: int) -> None:
    async with States(server.grpc_port, "public.t", "honest", token=TOKEN) as client:
        await client.until_keys([b"%d" % number for number in range(1, rows + 1)])
    wait_until(lambda: server.status["fanout"]["clients"] == 0, "the honest client gone")


def _failures(server: Fanout) -> list[str]:
    """Exceptions in the log, but for gRPC's own of a header that isn't UTF-8: it goes on."""
    lines = server.program.log.read_text(errors="replace").splitlines()
    return [line for line in lines if "Traceback" in line and "grpc_string.pyx" not in line]


def _processes(server: Fanout) -> set[int]:
    main = psutil.Process(server.program.pid)
    return {main.pid, *(child.pid for child in main.children(recursive=True))}


def _memory(server: Fanout) -> int:
    return sum(psutil.Process(pid).memory_info().rss for pid in _processes(server))
