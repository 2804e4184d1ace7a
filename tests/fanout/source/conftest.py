"""Clusters of a test's own."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fanout.source.clusters import Clusters, templates


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
