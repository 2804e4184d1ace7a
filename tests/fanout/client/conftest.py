"""A real server with three rows of two tenants."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from laredo_fanout.client.stream.endpoint import TransportName
from laredo_model.line import Action
from tests.fanout.client.kept_copy import Server
from tests.fanout.client.real_server import Source, serving
from tests.support.server import scripted_server

INSERT = Action.INSERT


@pytest.fixture(params=["grpc", "connect"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TransportName:
    """Both, in turns; scripted servers have it too."""
    monkeypatch.setattr(scripted_server, "by_transport", request.param)
    return request.param


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
