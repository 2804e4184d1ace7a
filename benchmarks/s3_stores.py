"""S3 servers on this machine for the benchmarks, and the environment their clients need."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3
import httpx
from botocore.config import Config

from benchmarks.processes import SCRIPTS, Program, free_port, wait_until

BUCKET = "laredo-bench"
EXTERNAL = os.environ.get("LAREDO_TEST_S3_ENDPOINT")
"""Another server to measure; its credentials come from the environment."""

_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIABENCHBENCHBENCH0",
    "AWS_SECRET_ACCESS_KEY": "no-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass(frozen=True)
class Store:
    """A server that runs; ``pid`` is None for one that isn't ours."""

    name: str
    endpoint: str
    pid: int | None


@contextmanager
def running(name: str, directory: Path, *, delay: float = 0.0) -> Iterator[Store]:
    """One of ``names()``, or ``sink``, which answers after ``delay`` seconds; with a bucket."""
    for variable, value in _ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    if name == "external":
        assert EXTERNAL is not None
        yield _with_bucket(Store(name, EXTERNAL, None))
        return
    port = free_port()
    os.environ.update({"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port)})
    os.environ.update({"SFTP_ENABLED": "0", "IOT_MTLS_ENABLED": "0", "LOG_LEVEL": "ERROR"})
    program = Program(_command(name, port, delay), directory / f"{name}-{port}.log")
    store = Store(name, f"http://127.0.0.1:{port}", program.pid)
    try:
        wait_until(lambda: _answers(program, store), timeout=60, what=f"{name}'s answer")
        yield _with_bucket(store)
    finally:
        program.stop(timeout=10)


def names() -> list[str]:
    """Those that keep what they get."""
    return ["moto", "ministack"] + (["external"] if EXTERNAL else [])


def _command(name: str, port: int, delay: float) -> list[str]:
    if name == "moto":
        return [str(SCRIPTS / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    if name == "ministack":
        return [str(SCRIPTS / "ministack")]
    module = [sys.executable, "-m", "benchmarks.s3_sink"]
    return [*module, "--port", str(port), "--delay", str(delay)]


def _answers(program: Program, store: Store) -> bool:
    program.check()
    try:
        httpx.get(store.endpoint, timeout=5, trust_env=False)
    except httpx.TransportError:
        return False
    return True


def _with_bucket(store: Store) -> Store:
    client = boto3.client(
        "s3", endpoint_url=store.endpoint, config=Config(s3={"addressing_style": "path"})
    )
    client.create_bucket(Bucket=BUCKET)
    return store
