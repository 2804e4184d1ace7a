"""A proxy before the session's server."""

from collections.abc import Iterator

import pytest

from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from tests.support.server.stuck_proxy import Proxy


@pytest.fixture
def proxy(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    path = tmp_path_factory.mktemp("proxy")
    proxy = Proxy(str(postgres.socket_directory / ".s.PGSQL.5432"), path)
    yield proxy
    proxy.close()
