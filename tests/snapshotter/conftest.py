from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.writer.served import Served, rows


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A server with one table; a test that wants others brings its own."""
    with Served(tmp_path / "state") as server:
        server.add("users", rows(0, 20))
        server.start()
        yield server
