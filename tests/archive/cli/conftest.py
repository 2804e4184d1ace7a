"""An archive of several epochs, and the environment in which commands reach S3 by the proxy."""

import os
from pathlib import Path

import pytest

from tests.support.archive.several_epochs import several_epochs
from tests.support.faults.proxy import FaultProxy


@pytest.fixture
def environment(proxy: FaultProxy) -> dict[str, str]:
    """The service by the environment, as boto3 has it too."""
    return {**os.environ, "AWS_ENDPOINT_URL": proxy.endpoint}


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return several_epochs(tmp_path).write()
