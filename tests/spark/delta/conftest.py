"""Delta Lake needs another PySpark: `make test-all` runs these tests in .venv-delta."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from pyspark.sql import SparkSession

collect_ignore_glob = [] if find_spec("delta") else ["test_*.py"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests, with Delta Lake in it."""
    from tests.support.lakehouse_session import delta_session

    session = delta_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
