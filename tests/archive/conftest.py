"""The destinations that the archive's tests run on: a directory, and two S3 servers."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from laredo_archive.storage.destination import Destination
from laredo_archive.storage.local import LocalDestination
from tests.support import drawn
from tests.support.archive.archiving import NewStores, anybodys, memory
from tests.support.archive.s3_maker import S3Maker
from tests.support.archive.scripted_s3 import S3Store, ScriptedS3
from tests.support.archive.world import World

ATOMIC_S3 = "s3_server"
"""The one whose compare-and-swap has one winner."""


@pytest.fixture(scope="session")
def makers(request: pytest.FixtureRequest) -> Callable[[str], S3Maker]:
    """By the name of a server's fixture."""
    made: dict[str, S3Maker] = {}

    def maker(server: str) -> S3Maker:
        if server not in made:
            made[server] = S3Maker(request.getfixturevalue(server))
        return made[server]

    return maker


@pytest.fixture(params=drawn.first(1, ["local", "moto", ATOMIC_S3]))
def store(request: pytest.FixtureRequest) -> str:
    """The kind of store: storage/test_destination.py proves the contract on each, for all else."""
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


@pytest.fixture(params=drawn.first(1, ["memory", ATOMIC_S3]))
def new_stores(request: pytest.FixtureRequest, makers: Callable[[str], S3Maker]) -> NewStores:
    """Makes stores, one or so many, that share one clock and are scripted by the test."""
    if request.param == "memory":
        return memory
    maker = makers(ATOMIC_S3)

    def scripted(count: int = 1) -> list[Any]:
        world, raw = World(0), maker.server.client("s3")
        return [ScriptedS3(S3Store(maker(), raw, world)) for _ in range(count)]

    return scripted
