"""The writer on S3, end to end: real processes against the test servers."""

from pathlib import Path

from tests.support.aws import AwsServer
from tests.support.faults.proxy import FaultProxy
from tests.support.writer.buckets import new_bucket
from tests.support.writer.served import Served, delete, put, rows
from tests.support.writer.writing import ReadyWriter, Writer


def test_a_table_is_archived_in_a_bucket(
    tmp_path: Path, served: Served, s3_server: AwsServer
) -> None:
    bucket = new_bucket(s3_server)
    with ReadyWriter(tmp_path, served, destinations=(bucket / "archive",)) as writer:
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


def test_many_tables_share_a_bucket_and_its_connections(
    tmp_path: Path, s3_server: AwsServer
) -> None:
    bucket, tables = new_bucket(s3_server), [f"t{number}" for number in range(6)]
    with FaultProxy(s3_server.endpoint) as proxy, Served(tmp_path / "many") as served:
        for table in tables:
            served.add(table, rows(0, 5))
        served.start()
        place = bucket.configured(endpoint=f'"{proxy.endpoint}"')
        with Writer(tmp_path, served, *tables, destinations=(place,)) as writer:
            writer.archive = bucket
            writer.program.wait_ready()
            probed = proxy.requests("CreateMultipartUpload")
            assert len(probed) == 1, "one probe for all tables"
            positions = {table: served.commit(table, put(1, "x")) for table in tables}
            for table, position in positions.items():
                writer.wait_head(position, table)
            assert writer.program.stop() == 0
    assert "discarding connection" not in writer.program.log.read_text()
    for table in tables:
        writer.assert_equal(table)
