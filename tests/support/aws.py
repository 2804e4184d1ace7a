"""S3, SNS, SQS, Kinesis and STS on this machine: servers of the test session, not of AWS.

``moto`` takes every operation; its compare-and-swap isn't atomic. ``ministack``'s is, so
writers race there. ``s3_server`` is ministack, or whatever LAREDO_TEST_S3_ENDPOINT names
(credentials from the environment). Each pytest-xdist worker has its own.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import Any

import boto3
import httpx
import pytest
from botocore.config import Config

from tests.support.processes import BIN, free_port, wait_until

S3_ENDPOINT = os.environ.get("LAREDO_TEST_S3_ENDPOINT")
REGION = "us-east-1"

# For the tests and every process they start: nobody's own AWS configuration is read, and
# nothing asks for an instance's metadata.
_ENVIRONMENT = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
_DUMMIES = {
    "AWS_ACCESS_KEY_ID": "AKIATESTTESTTESTTEST",
    "AWS_SECRET_ACCESS_KEY": "no-secret",
    "AWS_DEFAULT_REGION": REGION,
}
for _name in [name for name in os.environ if name.startswith("AWS_")]:
    if S3_ENDPOINT is None or _name not in {*_DUMMIES, "AWS_REGION", "AWS_SESSION_TOKEN"}:
        del os.environ[_name]
os.environ.update(_ENVIRONMENT)
for _name, _value in _DUMMIES.items():
    os.environ.setdefault(_name, _value)

_numbers = count(1)

# A server whose tests were killed ends too (Linux: PR_SET_PDEATHSIG is 1).
_END_WITH_PARENT = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the tests are gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class AwsServer:
    """A server of S3 and, but for an external one, of the other services."""

    endpoint: str
    _clients: dict[object, Any] = field(default_factory=dict)

    def client(self, service: str, **options: str) -> Any:
        """A plain boto3 client, not one of ours: to look at what there is."""
        wanted = (service, *sorted(options.items()))
        if wanted not in self._clients:
            config = Config(s3={"addressing_style": "path"})
            self._clients[wanted] = boto3.client(
                service,  # type: ignore[call-overload]
                endpoint_url=self.endpoint,
                config=config,
                **options,
            )
        return self._clients[wanted]

    def new_bucket(self, region: str | None = None) -> str:
        """A bucket that nobody else uses; its name."""
        name = f"laredo-test-{token_hex(4)}-{next(_numbers)}"
        if region is None:
            self.client("s3").create_bucket(Bucket=name)
        else:
            where = {"LocationConstraint": region}
            s3 = self.client("s3", region_name=region)
            s3.create_bucket(Bucket=name, CreateBucketConfiguration=where)
        return name


@contextmanager
def moto_served() -> Iterator[AwsServer]:
    """A moto of one's own."""
    port = free_port()
    command = [str(BIN / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with _served(command, f"http://127.0.0.1:{port}", "/moto-api/") as server:
        yield server


@pytest.fixture(scope="session")
def moto() -> Iterator[AwsServer]:
    with moto_served() as server:
        yield server


@pytest.fixture(scope="session")
def ministack() -> Iterator[AwsServer]:
    port = free_port()
    surroundings = {
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "SFTP_ENABLED": "0",
        "IOT_MTLS_ENABLED": "0",
        "LOG_LEVEL": "WARNING",
    }
    command = [str(BIN / "ministack")]
    endpoint = f"http://127.0.0.1:{port}"
    with _served(command, endpoint, "/_ministack/health", surroundings) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server(request: pytest.FixtureRequest) -> AwsServer:
    """An S3 whose compare-and-swap is atomic."""
    if S3_ENDPOINT is not None:
        return AwsServer(S3_ENDPOINT)
    return request.getfixturevalue("ministack")


@contextmanager
def _served(
    command: list[str], endpoint: str, path: str, environment: Mapping[str, str] | None = None
) -> Iterator[AwsServer]:
    with tempfile.TemporaryDirectory(prefix="laredo-aws-", ignore_cleanup_errors=True) as directory:
        log = Path(directory) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", _END_WITH_PARENT, str(os.getpid()), *command],
                cwd=directory,
                env={**os.environ, "TMPDIR": directory, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            wait_until(lambda: _answers(process, endpoint + path, log), f"{command[0]} answers")
            yield AwsServer(endpoint)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(process: "subprocess.Popen[bytes]", url: str, log: Path) -> bool:
    assert process.poll() is None, f"the server ended:\n{log.read_text(errors='replace')[-4000:]}"
    try:
        return httpx.get(url, timeout=60).status_code == 200
    except httpx.TransportError:
        return False
