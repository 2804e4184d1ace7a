"""One place in S3, reached straight and through the fault proxy."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from laredo_archive.storage.destination import Upload
from laredo_archive.storage.s3.destination import S3Destination
from laredo_archive.storage.s3.upload import PART_BYTES
from tests.archive.conftest import S3Maker
from tests.support.aws import S3_ENDPOINT
from tests.support.faults.fault import Fault, Rule
from tests.support.faults.proxy import FaultProxy

# What a real store takes is at least 5 MB a part; the test servers aren't as strict.
_PART_BYTES = PART_BYTES if S3_ENDPOINT else 64 << 10

LARGE = b"0123456789" * (_PART_BYTES // 9)
"""An object of two parts."""


class Way:
    """To one prefix: ``faulty`` goes through the proxy, ``direct`` past it."""

    def __init__(self, maker: S3Maker, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.faulty: S3Destination = maker(endpoint=proxy.endpoint)
        prefix = self.faulty.uri.removeprefix(f"s3://{maker.bucket}/")
        self.direct: S3Destination = maker(prefix=prefix)

    def meets(self, fault: Fault, operation: str = "*", **more: int | None) -> Rule:
        """From now on requests of that operation do; the first one only, unless told otherwise."""
        rule = Rule(fault, operation, **more)  # type: ignore[arg-type]
        self.proxy.add(rule)
        return rule

    def sent(self, operation: str) -> int:
        """How many requests of that operation there were."""
        return len(self.proxy.requests(operation))

    def begun(self, key: str, data: bytes) -> Upload:
        """An upload that isn't finished."""
        upload = self.faulty.upload(key)
        upload.write(data)
        return upload

    def read(self, key: str) -> bytes | None:
        """What is there; None if nothing is."""
        if self.direct.head(key) is None:
            return None
        with closing(self.direct.open(key)) as file:
            return file.read()


@pytest.fixture(autouse=True)
def small_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that two of them are no matter; but for who measures the real ones."""
    if "real_parts" not in request.fixturenames:
        monkeypatch.setattr("laredo_archive.storage.s3.upload.PART_BYTES", _PART_BYTES)


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
