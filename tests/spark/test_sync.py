"""``sync_table`` on Spark: tasks in its workers, what it reads back, and a job that is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

from laredo_archive import failpoint
from laredo_archive.codec import jsonl
from laredo_spark import read_table, sync_table, sync_tables, synced_table
from laredo_spark.sync import parquet
from laredo_spark.sync.directory import SyncDirectory
from laredo_spark.sync.errors import SyncFailed
from laredo_spark.sync.spark import failing_as
from laredo_spark.sync.sync import Job, SyncOutcome
from tests.spark.s3_archive import put, reached
from tests.support.archive.building import Builder
from tests.support.archive.many_rows import COUNT, many
from tests.support.aws import AwsServer
from tests.support.spark_reading import names

FIRST = {number: f"name {number}" for number in range(100)}


def same(spark: SparkSession, archive: Path, target: Path) -> bool:
    """By Spark: rows, types and names."""
    wanted, found = read_table(spark, str(archive)), synced_table(spark, target)
    assert found.schema == wanted.schema
    return not wanted.exceptAll(found).count() and not found.exceptAll(wanted).count()


def test_level_again_and_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "FILE_BYTES", 256 << 10)
    monkeypatch.setattr(jsonl, "SNAPSHOT_BLOCK", 64 << 10)
    builder = Builder(tmp_path / "archive").base(0x10, many())
    archive, target = builder.write(), tmp_path / "target"
    done = sync_table(spark, str(archive), target=target)
    assert (done.outcome, done.rows) == (SyncOutcome.REBUILT, COUNT) and done.files_written > 5
    assert same(spark, archive, target)
    builder.diff(0x20, many({7: "new", 8: None})).write()
    before = synced_table(spark, target)
    done = sync_table(spark, str(archive), target=target)
    assert (done.outcome, done.rows) == (SyncOutcome.MERGED, COUNT - 1)
    assert done.files_written in (1, 2)
    assert same(spark, archive, target)
    assert before.count() == COUNT
    assert str(done).endswith("merged, at 0/20 (epoch 1), 4999 rows")
    assert sync_table(spark, str(archive), target=target).outcome is SyncOutcome.UNCHANGED
    plain = spark.read.parquet(f"{target}/current")
    assert plain.count() == COUNT - 1


@pytest.mark.thorough
def test_an_archive_without_order(spark: SparkSession, tmp_path: Path) -> None:
    builder = Builder(tmp_path / "archive", plain=True, shuffled=True).base(0x10, names(FIRST))
    archive, target = builder.write(), tmp_path / "a target, 100%20"
    for position, changed in ((0x20, {**FIRST, 7: "new"}), (0x30, {1: "left"})):
        done = sync_table(spark, str(archive), target=target, key_fields="id")
        assert same(spark, archive, target)
        builder.diff(position, names(changed)).write()
        done = sync_table(spark, str(archive), target=target, key_fields=["id"])
        assert done.outcome is SyncOutcome.REBUILT
        assert same(spark, archive, target)


def test_from_a_bucket(spark: SparkSession, moto: AwsServer, tmp_path: Path) -> None:
    """Once it is level, what isn't new is no longer needed."""
    builder = Builder(tmp_path / "archive", formats=("protobuf",)).base(0x10, names(FIRST))
    builder.diff(0x20, names({**FIRST, 7: "changed"}))
    bucket, target = put(moto, builder.write()), tmp_path / "t"
    done = sync_table(spark, f"s3a://{bucket}/lake/users/", target=target, **reached(moto))
    assert (done.outcome, done.rows) == (SyncOutcome.REBUILT, 100)
    again = sync_table(spark, f"s3://{bucket}/lake/users/", target=target, **reached(moto))
    assert again.outcome is SyncOutcome.UNCHANGED
    for file in (tmp_path / "archive" / "users").glob("epoch=1/*"):
        file.unlink()
    builder.diff(0x30, names({**FIRST, 7: "changed", 200: "new"}))
    newer = put(moto, builder.write())
    done = sync_table(spark, f"s3://{newer}/lake/users/", target=target, **reached(moto))
    assert (done.outcome, done.files_written) == (SyncOutcome.MERGED, 1)
    found = {row.id: row["name"] for row in synced_table(spark, target).collect()}
    assert found == {**FIRST, 7: "changed", 200: "new"}


def test_one_that_fails_doesnt_stop_the_others(spark: SparkSession, tmp_path: Path) -> None:
    jobs = []
    for number in range(4):
        archive = Builder(tmp_path / f"archive{number}").base(0x10, names(FIRST)).write()
        jobs.append(Job(str(archive), str(tmp_path / f"target{number}")))
    [file] = Path(jobs[1].path).glob("epoch=1/*.jsonl")
    file.write_bytes(file.read_bytes()[:-50])
    (tmp_path / "target2").write_text("not a directory")
    jobs.append(Job(jobs[0].path, str(tmp_path / "target2" / "below")))
    done = sync_tables(spark, jobs, parallel=2)
    assert [one.synced is not None for one in done] == [True, False, False, True, False]
    assert isinstance(done[1].failure, SyncFailed)
    message = str(done[1].failure)
    assert file.name in message and "cut off" in message and "\n" not in message
    assert "is a file" in str(done[2].failure)
    assert isinstance(done[4].failure, SyncFailed)
    assert "can't be written: Not a directory" in str(done[4].failure)
    assert SyncDirectory(jobs[1].target).current() is None


PROGRAM = """
import sys
from pathlib import Path
from laredo_spark import sync_table
from laredo_spark.session import session
from laredo_spark.sync import parquet
parquet.FILE_BYTES = 256 << 10
spark = session(master="local[2]", settings={"spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"})
sync_table(spark, sys.argv[1], target=sys.argv[2])
"""


@pytest.mark.thorough
def test_a_job_that_is_killed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its own JVM; the next job finishes what it began, each change once."""
    monkeypatch.setattr(jsonl, "SNAPSHOT_BLOCK", 64 << 10)
    builder = Builder(tmp_path / "archive").base(0x10, many())
    archive, target = builder.write(), tmp_path / "target"
    sync_table(spark, str(archive), target=target)
    builder.diff(0x20, many({7: "new", 8: None, 9999: "more"})).write()
    for point, position in (("sync.staged", 0x10), ("sync.committed", 0x20)):
        killed = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(archive), str(target)],
            env={**os.environ, failpoint.VARIABLE: point, "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        state = SyncDirectory(target).state()
        assert state is not None and state.position == position
    assert same(spark, archive, target)
    assert sync_table(spark, str(archive), target=target).outcome is SyncOutcome.UNCHANGED


def test_what_a_worker_lacks_is_in_the_message(spark: SparkSession) -> None:
    def lacking(number: int) -> int:
        import no_such_module  # type: ignore[import-not-found]

        return int(no_such_module.of(number))

    task = F.udf(lacking, "int", useArrow=False)
    reason = "a Python worker failed: ModuleNotFoundError: No module named 'no_such_module'"
    refused = pytest.raises(SyncFailed, match=f"/target: {reason}. The target is unchanged")
    with refused, failing_as("/target"):
        spark.range(1).select(task("id")).collect()
