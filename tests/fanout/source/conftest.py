"""Clusters of a test's own, and a proxy before the session's."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from tests.fanout.source.clusters import Clusters, templates
from tests.fanout.source.stuck_proxy import Proxy


@pytest.fixture(scope="session")
def template() -> Iterator[Callable[[int], Path]]:
    with templates() as made:
        yield made


@pytest.fixture
def clusters(template: Callable[[int], Path]) -> Iterator[Clusters]:
    with (
        tempfile.TemporaryDirectory(prefix="laredo-data-", ignore_cleanup_errors=True) as path,
        ExitStack() as stack,
    ):
        Path(path).chmod(0o755)
        yield Clusters(Path(path), template, stack)


@pytest.fixture
def proxy(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    path = tmp_path_factory.mktemp("proxy")
    proxy = Proxy(str(postgres.socket_directory / ".s.PGSQL.5432"), path)
    yield proxy
    proxy.close()
