"""laredo-archive repair, between directories and buckets: what it prints, and its exit status."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from laredo_archive.maintain.copy import copy
from laredo_archive.read import location
from laredo_archive.storage.access import S3Access
from tests.support.archive.command_line import lines, rows, run, wrong_hash
from tests.support.archive.several_epochs import TWO
from tests.support.aws import AwsServer
from tests.support.faults.proxy import FaultProxy

BASE = "epoch=3/snapshot-0_258.jsonl"
DIFF = "epoch=3/diff-0_258-0_2BC.jsonl"


@pytest.fixture
def proxy(s3_server: AwsServer) -> Iterator[FaultProxy]:
    with FaultProxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def bucket(local: Path, s3_server: AwsServer) -> str:
    """The archive, copied into a bucket."""
    uri = f"s3://{s3_server.new_bucket()}/eu/users"
    copy(location.find(str(local)), location.parse(uri, S3Access(endpoint=s3_server.endpoint)))
    return uri


def test_a_directory_is_repaired_from_a_bucket(
    local: Path, bucket: str, environment: dict[str, str]
) -> None:
    wrong_hash(local)
    (local / DIFF).unlink()
    manifest = (local / "manifest.json").read_bytes()
    would = rows(run("repair", local, "--from", bucket, "--dry-run", env=environment))
    assert would[-1] == (f"{local.as_uri()}/manifest.json: 7 objects, would be restored 2, lost 0")
    assert would[0].startswith(f"would be restored from {bucket}/{DIFF}: {local.as_uri()}/{DIFF}:")
    assert ((local / DIFF).exists(), (local / "manifest.json").read_bytes()) == (False, manifest)
    done = rows(run("repair", local, "--from", bucket, env=environment))
    assert done[-1] == f"{local.as_uri()}/manifest.json: 7 objects, restored 2, lost 0"
    assert f"now {local.as_uri()}/{DIFF}: " in done[0]
    assert f"now {local.as_uri()}/epoch=3/snapshot-0_258-" in done[1]
    assert "its sha256 is" in done[1]
    assert run("verify", local).returncode == 0
    assert rows(run("cat", local)) == lines(TWO)
    again = rows(run("repair", local, "--from", bucket, env=environment))
    assert again == [f"{local.as_uri()}/manifest.json: 7 objects, restored 0, lost 0"]


def test_a_bucket_is_repaired_from_a_directory(
    local: Path, bucket: str, s3_server: AwsServer, environment: dict[str, str]
) -> None:
    s3, name = s3_server.client("s3"), bucket.split("/")[2]
    s3.delete_object(Bucket=name, Key=f"eu/users/{BASE}")
    damaged = (local / DIFF).read_bytes().replace(b"id", b"ID")
    s3.put_object(Bucket=name, Key=f"eu/users/{DIFF}", Body=damaged)
    found = run("verify", bucket, env=environment)
    assert found.returncode == 1
    assert f"problem: {bucket}/{BASE}: the manifest names this" in found.stdout
    assert f"problem: {bucket}/{DIFF}: its sha256 is" in found.stdout
    s3.put_object(Bucket=name, Key=f"eu/users/{DIFF}", Body=damaged[:-3])
    done = rows(run("repair", bucket, "--from", local, env=environment))
    assert done[-1] == f"{bucket}/manifest.json: 7 objects, restored 2, lost 0"
    assert run("verify", bucket, env=environment).returncode == 0
    assert rows(run("cat", bucket, env=environment)) == lines(TWO)


def test_two_services_are_reached_each_by_its_options(
    local: Path, bucket: str, s3_server: AwsServer, moto: AwsServer
) -> None:
    there = f"s3://{moto.new_bucket()}/users"
    copy(location.find(str(local)), location.parse(there, S3Access(endpoint=moto.endpoint)))
    s3_server.client("s3").delete_object(Bucket=bucket.split("/")[2], Key=f"eu/users/{BASE}")
    done = run(
        "repair", bucket, "--endpoint-url", s3_server.endpoint,
        "--from", there, "--from-endpoint-url", moto.endpoint,
    )  # fmt: skip
    assert rows(done)[-1] == f"{bucket}/manifest.json: 7 objects, restored 1, lost 0"


def test_what_both_lost_is_said_by_line_and_status(local: Path, tmp_path: Path) -> None:
    other = shutil.copytree(local, tmp_path / "other")
    wrong_hash(local)
    wrong_hash(other)
    for command in (("repair", local, "--from", other), ("repair", local)):
        done = run(*command)
        assert done.returncode == 1
        problem, summary = done.stdout.splitlines()
        assert problem.startswith("problem: snapshot 0/258 of epoch 3 (jsonl) is lost: ")
        assert "Restore the object from a backup" in problem
        assert summary.endswith("7 objects, restored 0, lost 1")
