"""``sync_table``: keep Parquet files, a Delta or an Iceberg table up to date with an archive.

    sync_table(spark, "s3://bucket/users/", to="parquet", target="/data/users")
    synced_table(spark, "/data/users")          # or spark.read.parquet("/data/users/current")

Each call brings the target to the archive's head: only new diffs are read, and only what they
touch is written. The position is committed with the rows, in one step, so each change is in the
target exactly once, however often a sync is killed and called again.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, get_args

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from laredo_archive.errors import ArchiveError
from laredo_archive.storage.s3.bucket import SCHEMES
from laredo_model import position as positions
from laredo_model.errors import ModelError
from laredo_model.position import Position
from laredo_spark import options
from laredo_spark.errors import OptionRefused, SparkReadError
from laredo_spark.sync.bucket import SyncBucket
from laredo_spark.sync.directory import SyncDirectory
from laredo_spark.sync.errors import SyncFailed
from laredo_spark.sync.lakehouse.delta import sync_delta
from laredo_spark.sync.lakehouse.iceberg import sync_iceberg
from laredo_spark.sync.parquet import ParquetSync, SyncResult, given_options
from laredo_spark.sync.plan import Merge, Rebuild, UpToDate
from laredo_spark.sync.spark import engine, file_uri

KEEP_S = 3600.0
"""Seconds that a version of a Parquet target stays after the next one, for its readers."""

To = Literal["parquet", "delta", "iceberg"]
FORMATS: Sequence[str] = get_args(To)


class SyncOutcome(StrEnum):
    """Outcome of a sync."""

    UNCHANGED = "unchanged"
    MERGED = "merged"
    REBUILT = "rebuilt"


@dataclass(frozen=True)
class Synced:
    """A target after a sync."""

    #: The table, as the manifest names it.
    table: str
    #: The target's path, or the name of its table.
    target: str
    #: What the sync did.
    outcome: SyncOutcome
    #: The boundary that the target holds.
    position: Position
    #: The epoch of that boundary.
    epoch: int
    #: The target's rows.
    rows: int
    #: The number of files that the sync wrote.
    files_written: int
    #: How long it took.
    seconds: float
    #: Why the target was rebuilt; empty if it wasn't.
    reason: str = ""

    def __str__(self) -> str:
        at = f"at {positions.text(self.position)} (epoch {self.epoch}), {self.rows} rows"
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.table}: {self.target} {self.outcome}{why}, {at}"


@dataclass(frozen=True)
class Job:
    """One table to sync: the arguments of sync_table()."""

    #: The archive's path or URI.
    path: str
    #: The target's path, or the name of its table.
    target: str
    #: The target's format.
    to: To = "parquet"
    #: Whether the target is rewritten whatever it holds.
    rebuild: bool = False
    #: Seconds that a version of a Parquet target stays after the next one.
    keep_s: float = KEEP_S
    #: More options of laredo_spark.options.
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """A finished job: ``synced``, or else ``failure``."""

    #: The job.
    job: Job
    #: The target, if the sync succeeded.
    synced: Synced | None = None
    #: The error, if it failed.
    failure: Exception | None = None


def sync_table(
    spark: SparkSession,
    path: str,
    to: To = "parquet",
    target: str | Path = "",
    *,
    rebuild: bool = False,
    keep_s: float = KEEP_S,
    **given: object,
) -> Synced:
    """Bring ``target`` up to the head of the archive at ``path``.

    ``target`` is a directory or a bucket's prefix; of Iceberg, a table: CATALOG.NAMESPACE.TABLE.

    ``rebuild`` rewrites it whatever it holds. ``given``: options of
    :mod:`laredo_spark.options` for access to S3 and for types of columns.

    :raises ArchiveError: if the archive can't be read.
    :raises SyncError: if the target can't be written; it is left as it was.
    :raises OptionRefused: if an option can't be used.
    """
    refuse_unusable(to, target)
    begun = time.monotonic()
    asked = given_options({**given, "path": path})
    if to == "delta":
        written = sync_delta(spark, asked, str(target), rebuild=rebuild)
    elif to == "iceberg":
        written = sync_iceberg(spark, asked, str(target), rebuild=rebuild)
    else:
        written = _sync_parquet(spark, asked, target, rebuild=rebuild, keep_s=keep_s)
    state, step = written.state, written.step
    outcomes = {
        UpToDate: SyncOutcome.UNCHANGED,
        Merge: SyncOutcome.MERGED,
        Rebuild: SyncOutcome.REBUILT,
    }
    return Synced(
        state.table,
        str(target),
        outcomes[type(step)],
        state.position,
        state.epoch,
        state.rows,
        written.files_written,
        time.monotonic() - begun,
        step.reason if isinstance(step, Rebuild) else "",
    )


def refuse_unusable(to: str, target: str | Path) -> None:
    """Refuse a format that there isn't, and a target that isn't given.

    :raises OptionRefused: if it is so.
    """
    if to not in FORMATS:
        raise OptionRefused("to", to, f"there are {', '.join(FORMATS)}")
    if not str(target):
        raise OptionRefused("target", "", "a directory, a bucket's prefix or a table's name")


def _sync_parquet(
    spark: SparkSession, asked: dict[str, str], target: str | Path, *, rebuild: bool, keep_s: float
) -> SyncResult:
    found = target_at(target, asked)
    try:
        with found.locked():
            written = ParquetSync(found, asked, engine(spark, found)).run(rebuild=rebuild)
            found.remove_old(keep_s)
    except OSError as failure:
        where = f" ({failure.filename})" if failure.filename else ""
        reason = f"it can't be written: {failure.strerror or failure}{where}"
        raise SyncFailed(found, reason) from failure
    return written


def target_at(target: str | Path, asked: Mapping[str, str]) -> SyncDirectory | SyncBucket:
    """A Parquet target; ``asked``: options of a read, for access to a bucket.

    :raises TargetRefused: if it is neither a directory's path nor an S3 URI.
    """
    if isinstance(target, str) and target.lower().startswith(SCHEMES):
        return SyncBucket(target, options.parse(asked))
    return SyncDirectory(target)


def synced_table(spark: SparkSession, target: str | Path, **given: object) -> DataFrame:
    """A Parquet target as it is now; the DataFrame stays at this version.

    A bucket's files are read by Spark's own S3 connector (s3a), which has settings of its own;
    ``given`` are options of :mod:`laredo_spark.options`, for access to the pointer.

    :raises TargetMissing: if nothing was synced to it yet.
    """
    found = target_at(target, given_options({**given, "path": str(target)}))
    if isinstance(found, SyncBucket):
        bucket, prefix = found.shown().uri.split("://", 1)[1].split("/", 1)
        return spark.read.parquet(f"s3a://{bucket}/{prefix}")
    return spark.read.parquet(file_uri(found.shown().path))


def sync_tables(
    spark: SparkSession,
    jobs: Sequence[Job],
    *,
    parallel: int = 1,
    on_done: Callable[[Done], None] = lambda done: None,
) -> list[Done]:
    """Sync several tables, some at the same time; one that fails doesn't stop the others."""

    def run(job: Job) -> Done:
        try:
            synced = sync_table(
                spark, job.path, job.to, job.target,
                rebuild=job.rebuild, keep_s=job.keep_s, **job.options,
            )  # fmt: skip
            done = Done(job, synced)
        except (ArchiveError, SparkReadError, ModelError, OSError, PySparkException) as failure:
            done = Done(job, failure=failure)
        on_done(done)
        return done

    with ThreadPoolExecutor(parallel, "laredo-sync") as pool:
        return list(pool.map(run, jobs))
