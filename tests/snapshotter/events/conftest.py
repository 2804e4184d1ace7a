"""A server that records notices, a proxy before it, and clients of AWS."""

from collections.abc import Iterator

import pytest

from laredo_archive.aws.clients import AwsClients
from tests.snapshotter.events.recording import Recorder
from tests.support.faults.proxy import FaultProxy


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with Recorder() as server:
        yield server


@pytest.fixture
def proxy(recorder: Recorder) -> Iterator[FaultProxy]:
    with FaultProxy(recorder.endpoint) as between:
        yield between


@pytest.fixture
def clients() -> Iterator[AwsClients]:
    made = AwsClients()
    yield made
    made.close()
