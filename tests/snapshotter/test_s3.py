"""The writer on S3, end to end: real processes against the test servers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fix_aws import AwsServer
from tests.snapshotter.buckets import new_bucket
from tests.snapshotter.served import Served, delete, put, rows
from tests.snapshotter.writing import Writer


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "state") as server:
        server.add("users", rows(0, 20))
        server.start()
        yield server


def test_a_table_is_archived_in_a_bucket(
    tmp_path: Path, served: Served, s3_server: AwsServer
) -> None:
    bucket = new_bucket(s3_server)
    with Writer(tmp_path, served, destinations=(bucket / "archive",)) as writer:
        writer.program.wait_ready()
        writer.wait_head(served.commit("users", put(1, "changed"), delete(2)))
        assert writer.post("/snapshot?wait=true").json() == {"epochs": {"public.users": 2}}
        writer.wait_head(served.commit("users", put(100, "new")))
        assert writer.program.stop() == 0
    writer.assert_equal()
    assert [kind for kind, _ in writer.kinds()] == ["snapshot", "diff", "snapshot", "diff"]
    for artifact in writer.artifacts():
        entry = artifact["formats"]["jsonl"]
        assert entry["uri"] == f"s3://{bucket.bucket}/archive/{entry['key']}"
    assert all(key.startswith("archive/users/") for key in bucket.names())
    assert bucket.unfinished() == []
