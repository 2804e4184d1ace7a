import os
from collections.abc import Iterator

import pytest
import structlog

# Tests start programs while gRPC clients run in their own process: gRPC's handlers in the
# forked child, which is about to become another program, can end it before it does.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

pytest_plugins = [
    "tests.fix_postgres",
    "tests.fix_clusters",
    "tests.fix_ingest",
    "tests.fix_spark",
    "tests.fix_aws",
]


@pytest.fixture(autouse=True)
def logging_is_as_it_was() -> Iterator[None]:
    """A command line that is run in this process sets up its logging, for later tests too."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


LONG = (
    "tests/spark/test_delta.py",
    "tests/spark/test_stream_killed.py",
    "tests/end_to_end/test_chaos.py",
    "tests/faults/test_chaos.py",
    "tests/fanout/source/test_histories.py",
    "tests/archive/test_kill.py",
    "tests/spark/test_stream_postgres.py",
    "tests/spark/test_sync.py",
    "tests/end_to_end/test_oracle.py",
    "tests/end_to_end/test_histories.py",
    "tests/spark/test_example_notebook.py",
    "tests/spark/test_postgres.py",
    "tests/spark/test_golden.py",
    "tests/spark/test_stream.py",
    "tests/end_to_end/test_cold_replay.py",
)
"""Begun first: one of them left for the end would run alone, while other workers have nothing."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In the order in which files are handed to workers."""
    ranks = {name: rank for rank, name in enumerate(LONG)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(LONG)))
