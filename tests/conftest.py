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
