"""One place in S3, reached straight and through the fault proxy."""

from collections.abc import Iterator

import pytest

from tests.support.archive.s3_maker import S3Maker
from tests.support.archive.s3_way import SMALL_PART_BYTES, Way
from tests.support.faults.proxy import FaultProxy


@pytest.fixture(autouse=True)
def small_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make parts small, so that two of them cost little; not for tests that measure real parts."""
    if "real_parts" not in request.fixturenames:
        monkeypatch.setattr("laredo_archive.storage.s3.upload.PART_BYTES", SMALL_PART_BYTES)


@pytest.fixture
def real_parts() -> None:
    """Parts of the size that they have."""


@pytest.fixture
def proxy(s3: S3Maker) -> Iterator[FaultProxy]:
    with FaultProxy(s3.server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def way(s3: S3Maker, proxy: FaultProxy) -> Way:
    return Way(s3, proxy)


@pytest.fixture
def brief_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of clients that are made from now on."""
    monkeypatch.setattr("laredo_archive.aws.clients.READ_TIMEOUT_S", 0.3)
