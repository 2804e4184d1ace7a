"""A real server with three rows of two tenants."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from laredo_model.line import Action
from tests.fanout.client.kept_copy import Server
from tests.fanout.client.real_server import Source, serving

INSERT = Action.INSERT


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    source = Source(tmp_path / "store")
    source.write(
        [(INSERT, "a", "x", "acme", 1), (INSERT, "a", "y", "acme", 2)],
        [(INSERT, "b", "x", "zeta", 9007199254740993)],
    )
    yield source
    source.store.close()


@pytest.fixture
def server(source: Source) -> Iterator[Server]:
    server = Server(source)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def port(source: Source) -> AsyncIterator[int]:
    async with serving(source) as port:
        yield port
