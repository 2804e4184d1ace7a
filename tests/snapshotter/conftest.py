from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.writer.served import Served, serving


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A server with one table; a test that wants others brings its own."""
    with serving(tmp_path / "state", "users") as server:
        yield server
