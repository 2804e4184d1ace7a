"""The destinations that the archive's tests run on: a directory, and two S3 servers."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from laredo_archive.aws.clients import Called, Clients
from laredo_archive.storage.destination import Destination
from laredo_archive.storage.local.destination import LocalDestination
from laredo_archive.storage.s3.bucket import S3Location
from laredo_archive.storage.s3.destination import S3Destination
from tests.support.archive.archiving import ScriptedDestination, anybodys, memory
from tests.support.archive.scripted_s3 import S3Store, ScriptedS3
from tests.support.archive.world import World
from tests.support.aws import AwsServer

ATOMIC_S3 = "s3_server"
"""The one whose compare-and-swap has one winner."""

_numbers = count(1)


class S3Maker:
    """Makes destinations on one server, each in a prefix of its own, and notes their requests."""

    def __init__(self, server: AwsServer) -> None:
        self.server = server
        self.called: list[Called] = []
        self._clients = Clients(on_call=self.called.append)
        self._bucket: str | None = None

    @property
    def bucket(self) -> str:
        if self._bucket is None:
            self._bucket = self.server.new_bucket()
        return self._bucket

    def __call__(self, **more: Any) -> S3Destination:
        """``more``: of the place; ``pause`` is of the destination."""
        pause = more.pop("pause", lambda *_: None)
        more.setdefault("endpoint", self.server.endpoint)
        more.setdefault("addressing", "path")
        more.setdefault("bucket", self.bucket)
        more.setdefault("prefix", f"test {next(_numbers):05}/é=ü+%25")
        return S3Destination(S3Location(**more), self._clients, pause)


@pytest.fixture(scope="session")
def makers(request: pytest.FixtureRequest) -> Callable[[str], S3Maker]:
    """By the name of a server's fixture."""
    made: dict[str, S3Maker] = {}

    def maker(server: str) -> S3Maker:
        if server not in made:
            made[server] = S3Maker(request.getfixturevalue(server))
        return made[server]

    return maker


@pytest.fixture(params=["local", "moto", ATOMIC_S3])
def store(request: pytest.FixtureRequest) -> str:
    """Which kind of store."""
    return str(request.param)


@pytest.fixture
def new_destination(
    store: str, tmp_path: Path, makers: Callable[[str], S3Maker]
) -> Callable[[], Destination]:
    """Makes places with nothing in them."""
    numbers = count()

    def new() -> Destination:
        if store == "local":
            return LocalDestination(tmp_path / f"not yet {next(numbers)}" / "there")
        return makers(store)()

    return new


@pytest.fixture
def destination(new_destination: Callable[[], Destination]) -> Iterator[Destination]:
    """A place with nothing in it, and nothing half-finished left in it."""
    made = new_destination()
    yield made
    assert made.collect_unfinished("", timedelta(0), anybodys) == 0, (
        "a half-finished upload was left"
    )


@pytest.fixture(scope="session")
def s3(makers: Callable[[str], S3Maker]) -> S3Maker:
    """Destinations on an S3 whose compare-and-swap is atomic."""
    return makers(ATOMIC_S3)


NewStores = Callable[..., list[ScriptedDestination]]


@pytest.fixture(params=["memory", ATOMIC_S3])
def new_stores(request: pytest.FixtureRequest, makers: Callable[[str], S3Maker]) -> NewStores:
    """Makes stores, one or so many, that share one clock and are scripted by the test."""
    if request.param == "memory":
        return memory
    maker = makers(ATOMIC_S3)

    def scripted(count: int = 1) -> list[Any]:
        world, raw = World(0), maker.server.client("s3")
        return [ScriptedS3(S3Store(maker(), raw, world)) for _ in range(count)]

    return scripted
