"""``sync_table`` to Parquet in a bucket: level at each step, whole wherever it is killed."""

import json
import os
import signal
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from laredo_archive import failpoint
from laredo_archive.codec import jsonl
from laredo_archive.errors import CommitStateUnknown
from laredo_spark import sync_table
from laredo_spark.sync import parquet
from laredo_spark.sync.bucket import SyncBucket
from laredo_spark.sync.errors import TargetBusy, TargetMissing, TargetRefused
from laredo_spark.sync.parquet import Engine, ParquetSync, given_options
from laredo_spark.sync.plan import Merge, Rebuild, UpToDate
from laredo_spark.sync.sync import target_at
from tests.spark.parquet_copy import here, no_join, sync
from tests.spark.s3_archive import reached
from tests.support import drawn
from tests.support.archive.building import Builder, State
from tests.support.archive.many_rows import many
from tests.support.aws import AwsServer
from tests.support.faults.fault import Rule, answer, drop
from tests.support.faults.proxy import FaultProxy
from tests.support.writer.buckets import BucketPath, new_bucket

PREFIX = "lake/users/"


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "FILE_BYTES", 256 << 10)
    monkeypatch.setattr(jsonl, "SNAPSHOT_BLOCK", 64 << 10)


@pytest.fixture
def archive(tmp_path: Path) -> Builder:
    builder = Builder(tmp_path / "archive").base(0x10, many())
    builder.write()
    return builder


@pytest.fixture
def place(s3_server: AwsServer) -> BucketPath:
    return new_bucket(s3_server)


def target_in(place: BucketPath) -> str:
    return f"s3://{place.bucket}/{PREFIX}"


def to_bucket(archive: Path, place: BucketPath, **given: Any) -> Any:
    return sync(archive, target_in(place), **{**reached(place.server), **given})


def pointer_of(place: BucketPath) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / PREFIX.rstrip("/") / "current.json").read_bytes())
    return found


def rows_in(place: BucketPath, folder: str | None = None) -> list[dict[str, Any]]:
    """Of every Parquet file that a reader of the folder finds."""
    below = f"{PREFIX}{folder or pointer_of(place)['folder']}"
    rows = [
        row
        for key in place.names()
        if key.startswith(below)
        for row in pq.read_table(
            BytesIO(BucketPath(place.server, place.bucket, key).read_bytes())
        ).to_pylist()
    ]
    return sorted(rows, key=lambda row: str(row["id"]))


def expected(state: State) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in state.values()]
    for line in lines:
        line["doc"] = None if line["doc"] is None else json.dumps(line["doc"])
    return sorted(lines, key=lambda line: str(line["id"]))


def folders(place: BucketPath) -> set[str]:
    return {key.removeprefix(PREFIX).split("/")[1] for key in place.names() if "/versions/" in key}


def test_level_at_each_boundary(archive: Builder, place: BucketPath) -> None:
    first = to_bucket(archive.write(), place)
    assert isinstance(first.step, Rebuild) and len(first.state.files) > 5
    for position, changed in ((0x20, {7: "new", 8: None}), (0x30, {7: None, 9999: "é"})):
        archive.diff(position, many(changed))
        done = to_bucket(archive.write(), place)
        assert isinstance(done.step, Merge) and done.state.position == position
        assert done.files_written < len(done.state.files)
        assert rows_in(place) == expected(archive.states[-1])
        assert isinstance(to_bucket(archive.write(), place).step, UpToDate)
    assert isinstance(to_bucket(archive.write(), place, rebuild=True).step, Rebuild)
    assert rows_in(place) == expected(archive.states[-1])


def test_spark_s_workers_write_it(spark: SparkSession, archive: Builder, place: BucketPath) -> None:
    target = target_in(place)
    asked: dict[str, Any] = reached(place.server)
    assert sync_table(spark, str(archive.write()), target=target, **asked).outcome == "rebuilt"
    archive.diff(0x20, many({7: "new", 8: None}))
    assert sync_table(spark, str(archive.write()), target=target, **asked).outcome == "merged"
    assert rows_in(place) == expected(archive.states[-1])


def test_the_second_of_two_at_once_fails_and_leaves_nothing(
    archive: Builder, place: BucketPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_bucket(archive.write(), place)
    archive.diff(0x20, many({7: "new"})).write()
    asked = given_options({"path": archive.directory / "users", **reached(place.server)})
    late = target_at(target_in(place), asked)
    with late.locked():
        to_bucket(archive.directory / "users", place)
        with pytest.raises(TargetBusy, match="another sync"):
            ParquetSync(late, asked, Engine(here, no_join, 2)).run()
    assert rows_in(place) == expected(archive.states[-1])
    assert len(folders(place)) == 2


def test_versions_stay_as_long_as_said_and_what_isnt_ours_for_ever(
    archive: Builder, place: BucketPath
) -> None:
    to_bucket(archive.write(), place)
    first, before = pointer_of(place)["folder"], rows_in(place)
    foreign = ("versions/00000001-mine/part-1.parquet", f"{first}notes.txt")
    s3 = place.server.client("s3")
    for key in foreign:
        s3.put_object(Bucket=place.bucket, Key=f"{PREFIX}{key}", Body=b"x")
    to_bucket(archive.diff(0x20, many({1: "a"})).write(), place)
    target = SyncBucket(target_in(place), parsed(place))
    with target.locked():
        target.remove_old(3600)
    s3.delete_object(Bucket=place.bucket, Key=f"{PREFIX}{foreign[1]}")
    assert rows_in(place, first) == before
    s3.put_object(Bucket=place.bucket, Key=f"{PREFIX}{foreign[1]}", Body=b"x")
    with target.locked():
        target.remove_old(0)
    left = {key.removeprefix(PREFIX) for key in place.names()}
    assert {key for key in left if key.startswith(first)} == {foreign[1]}
    assert foreign[0] in left
    assert pointer_of(place)["former"] == []
    assert rows_in(place) == expected(archive.states[-1])


def parsed(place: BucketPath) -> Any:
    asked = given_options({"path": "-", **reached(place.server)})
    return parquet.options.parse(asked)


def test_what_isnt_a_target(archive: Builder, place: BucketPath) -> None:
    with pytest.raises(TargetMissing, match="nothing was synced"):
        SyncBucket(target_in(place), parsed(place)).shown()
    s3 = place.server.client("s3")
    s3.put_object(Bucket=place.bucket, Key=f"{PREFIX}mine.csv", Body=b"x")
    with pytest.raises(TargetRefused, match=r"something else in it \(mine.csv\)"):
        to_bucket(archive.write(), place)
    s3.delete_object(Bucket=place.bucket, Key=f"{PREFIX}mine.csv")
    to_bucket(archive.write(), place)
    hostile = {**pointer_of(place), "folder": "../../other/"}
    s3.put_object(
        Bucket=place.bucket, Key=f"{PREFIX}current.json", Body=json.dumps(hostile).encode()
    )
    with pytest.raises(TargetRefused, match=r"names '../../other/', which is no version's folder"):
        to_bucket(archive.write(), place)


def test_an_answer_that_is_lost(archive: Builder, place: BucketPath) -> None:
    """Of the pointer's swap: what is there decides. A copy of the target isn't half of one."""
    to_bucket(archive.write(), place)
    with FaultProxy(place.server.endpoint) as proxy:
        through = {"endpoint": proxy.endpoint}
        pointer = f"{PREFIX}current.json"
        proxy.add(Rule(drop(after=True), "PutObject", pointer))
        done = to_bucket(archive.diff(0x20, many({1: "a"})).write(), place, **through)
        assert isinstance(done.step, Merge) and proxy.faults() == {"drop after": 1}
        assert rows_in(place) == expected(archive.states[-1])
        proxy.add(Rule(drop(), "PutObject", pointer, times=None))
        with pytest.raises(CommitStateUnknown):
            to_bucket(archive.diff(0x30, many({1: "b"})).write(), place, **through)
        assert rows_in(place) == expected(archive.states[-2])
        proxy.clear()
        proxy.add(Rule(answer(403, "AccessDenied"), "PutObject", f"{PREFIX}versions/*"))
        with pytest.raises(Exception, match="AccessDenied"):
            to_bucket(archive.write(), place, **through)
        assert rows_in(place) == expected(archive.states[-2])
        proxy.clear()
        to_bucket(archive.write(), place, **through)
    assert rows_in(place) == expected(archive.states[-1])


PROGRAM = """
import json, sys
from pathlib import Path
from tests.spark.parquet_copy import sync
sync(Path(sys.argv[1]), sys.argv[2], **json.loads(sys.argv[3]))
"""


@pytest.mark.parametrize("point", drawn.first(1, ["linked", "committed", "planned", "staged"]))
def test_killed(archive: Builder, place: BucketPath, point: str) -> None:
    """Readers always see one boundary, and what a killed sync left goes with the next ones."""
    for position in (0x10, 0x20, 0x30):
        if position > 0x10:
            archive.diff(position, many({1: f"at {position}", 2: None}))
        asked = json.dumps(reached(place.server))
        killed = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(archive.write()), target_in(place), asked],
            env={**os.environ, failpoint.VARIABLE: f"sync.{point}"},
            check=False,
        ).returncode
        assert killed == -signal.SIGKILL
        if point == "committed":
            assert rows_in(place) == expected(archive.states[-1])
        elif position > 0x10:
            assert rows_in(place) == expected(archive.states[-2])
        else:
            assert not (place / PREFIX.rstrip("/") / "current.json").exists()
        to_bucket(archive.write(), place)
        assert rows_in(place) == expected(archive.states[-1])
        target = SyncBucket(target_in(place), parsed(place))
        with target.locked():
            target.remove_old(0)
        assert len(folders(place)) == 1
