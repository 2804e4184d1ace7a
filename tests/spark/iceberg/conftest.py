"""Iceberg needs another PySpark: `make test-all` runs these tests in .venv-iceberg."""

from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from laredo_spark.sync.iceberg import RUNTIMES

collect_ignore_glob = [] if pyspark.__version__.rsplit(".", 1)[0] in RUNTIMES else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    """PySpark 4.1 leaves the sockets of its results to the collector of garbage."""
    if not collect_ignore_glob:
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the tables of the catalog ``lake``."""
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, warehouse: Path) -> Iterator[SparkSession]:
    """One session for all tests, with Iceberg in it."""
    from tests.support.lakehouse_session import iceberg_session

    session = iceberg_session(tmp_path_factory.mktemp("spark"), warehouse)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def remote(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A catalog of type rest, in the same session."""
    from tests.spark.iceberg.rest_catalog import rest_catalog

    with rest_catalog(tmp_path_factory.mktemp("remote")) as address:
        spark.conf.set("spark.sql.catalog.remote", "org.apache.iceberg.spark.SparkCatalog")
        spark.conf.set("spark.sql.catalog.remote.type", "rest")
        spark.conf.set("spark.sql.catalog.remote.uri", address)
        yield "remote"


@pytest.fixture
def catalog(request: pytest.FixtureRequest) -> str:
    """The catalog that a test's tables are in: ``lake``, but where a test asks for others."""
    kind: str = getattr(request, "param", "hadoop")
    return request.getfixturevalue("remote") if kind == "rest" else "lake"
