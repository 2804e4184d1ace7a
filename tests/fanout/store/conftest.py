"""An empty store for each test that asks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from laredo_fanout.store.writer import Store
from tests.support.server.store_sample import open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store") as opened:
        yield opened
