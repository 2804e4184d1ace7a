"""``sync_table(to="delta")``: changes merged into a Delta table, one commit with their position.

Each commit of a sync names its boundary in the commit's userMetadata. Its transaction's version
(txnAppId, txnVersion) is greater than all before, and Delta skips a write whose version is
recorded already: so of two jobs that planned on the same log only one commits.
https://docs.delta.io/latest/delta-batch.html#idempotent-writes

Delta drops commits from its log after delta.logRetentionDuration (30 days) when there are later
ones; a sync of an unchanged target therefore commits its boundary again once a week.
"""

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import pyspark
from packaging.requirements import Requirement
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it
from pyspark.sql.types import StructType

from laredo_archive.failpoint import reach
from laredo_spark import options
from laredo_spark.read.table_read import TableRead
from laredo_spark.session import quoted
from laredo_spark.sync import merging
from laredo_spark.sync.errors import (
    DeltaMissing,
    DeltaUnfit,
    TargetBusy,
    TargetDiffers,
    TargetRefused,
)
from laredo_spark.sync.merging import (
    Merge,
    Rebuild,
    StateUnreadable,
    SyncResult,
    SyncState,
    UpToDate,
)
from laredo_spark.sync.spark import failing_as, frame_of, own_session

# Checks that a Spark session has Delta Lake, and one made for its Spark.
#
# Delta's classes are compiled for one release of Spark. With another one some calls work and others
# end in a NoSuchMethodError, also after a write: so the versions are compared first.

EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
EXTENSIONS_SETTING = "spark.sql.extensions"
_PACKAGE = "delta-spark"
_SCALA = "2.13"
_RELEASE = re.compile(r"\d+(\.\d+)*")


def refuse_unfit(spark: SparkSession) -> None:
    """Refuse a session that can't write Delta tables.

    :raises DeltaMissing: if Delta Lake isn't in the session.
    :raises DeltaUnfit: if it is for another Spark.
    """
    try:
        import delta.tables  # noqa: F401

        installed = metadata.version(_PACKAGE)
    except (ImportError, metadata.PackageNotFoundError):
        raise DeltaMissing("the Python package delta-spark isn't installed") from None
    required = [
        line for line in metadata.requires(_PACKAGE) or () if Requirement(line).name == "pyspark"
    ]
    if not all(fits(spark.version, line) for line in required):
        raise DeltaUnfit(installed, ", ".join(required), spark.version)
    if EXTENSION not in (spark.conf.get(EXTENSIONS_SETTING, "") or ""):
        raise DeltaMissing(
            f"{EXTENSIONS_SETTING} lacks {EXTENSION}, and spark.sql.catalog.spark_catalog is to be"
            f" {CATALOG}"
        )


def settings() -> dict[str, str]:
    """Spark's settings that load the installed Delta Lake.

    :raises DeltaMissing: if the Python package isn't installed.
    """
    try:
        installed = metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:
        raise DeltaMissing("the Python package delta-spark isn't installed") from None
    spark = ".".join(pyspark.__version__.split(".")[:2])
    return {
        "spark.jars.packages": f"io.delta:{_PACKAGE}_{spark}_{_SCALA}:{installed}",
        EXTENSIONS_SETTING: EXTENSION,
        "spark.sql.catalog.spark_catalog": CATALOG,
    }


def fits(version: str, requirement: str) -> bool:
    """True if a release meets a requirement (``pyspark<=4.2.0,>=4.0.1``).

    A vendor's build counts as its release: ``4.2.0-amzn-1`` is 4.2.0.
    """
    wanted = Requirement(requirement)
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
        return True
    release = _RELEASE.match(version)
    return release is not None and wanted.specifier.contains(release[0])


AGED_S = 7 * 86400.0
"""Seconds after which a sync's newest commit is repeated."""
NO_TABLE = -1
_MARK = "laredo"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_APP = "spark.databricks.delta.write.txnAppId"
_TXN = "spark.databricks.delta.write.txnVersion"
_COMMITS = 100
_SAME_ROWS = frozenset(
    {
        "OPTIMIZE",
        "REORG",
        "VACUUM START",
        "VACUUM END",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "COMPUTE STATS",
        "CLUSTER BY",
        "UPGRADE PROTOCOL",
    }
)
_MAPPING = "delta.columnMapping.mode"
_UNMAPPED = frozenset(" ,;{}()\n\t=")
_FILES_WRITTEN = ("numFiles", "numTargetFilesAdded", "numAddedFiles")


@dataclass(frozen=True)
class Held:
    """The present state of a Delta table, by its log."""

    #: The boundary that a sync committed last; None if it is at no boundary.
    state: SyncState | None = None
    #: The table's newest version.
    version: int = NO_TABLE
    #: The operation by which another program changed its rows since; None if none did.
    by_others: str | None = None
    #: Whether the sync's commit is so old that it is to be repeated.
    is_aged: bool = False
    #: The files that the sync's newest commit wrote.
    files_written: int = 0


@dataclass(frozen=True)
class DeltaLog:
    """The log of the Delta table at ``target``."""

    #: The sync's own session, as each commit changes its settings.
    spark: SparkSession
    target: str

    def held(self) -> Held:
        """Read the newest commit of a sync.

        :raises TargetRefused: if it is a Delta table that no sync has made.
        """
        from delta.tables import DeltaTable

        if not DeltaTable.isDeltaTable(self.spark, self.target):
            _refuse_others(self.target)
            return Held()
        commits = self._commits(_COMMITS)
        ours = next(filter(_is_ours, commits), None)
        if ours is None and len(commits) == _COMMITS:
            commits = self._commits()
            ours = next(filter(_is_ours, commits), None)
        if ours is None:
            raise TargetRefused(
                self.target,
                "is a Delta table without a commit of laredo's in its log; sync to another path",
            )
        # None where spark.databricks.delta.history.metricsEnabled is off.
        metrics = ours["operationMetrics"] or {}
        return Held(
            self._state(ours),
            commits[0]["version"],
            _by_others(commits[: commits.index(ours)]),
            time.time() - ours["at_ms"] / 1000 > AGED_S,
            sum(int(metrics.get(name, 0)) for name in _FILES_WRITTEN),
        )

    @contextmanager
    def committing(self, state: SyncState | None, table: str, after: Held) -> Iterator[None]:
        """Writes in the block commit that the rows are at ``state``; None: at no boundary.

        :raises TargetBusy: if another sync has committed since ``after``.
        """
        described = None if state is None else state.to_json()
        settings = {
            _METADATA: json.dumps({_MARK: described}),
            _APP: f"{_MARK}:{table}",
            _TXN: str(after.version + 1),
        }
        with _conflicts_as_busy(self.target):
            for name, value in settings.items():
                self.spark.conf.set(name, value)
            try:
                yield
            finally:
                for name in settings:
                    self.spark.conf.unset(name)

    def committed(self, state: SyncState) -> Held:
        """Read the log after a commit of ``state``.

        :raises TargetBusy: if Delta skipped it, as another sync had committed.
        """
        found = self.held()
        if found.state != state:
            raise TargetBusy(self.target)
        return found

    def _commits(self, newest: int | None = None) -> Sequence[Row]:
        """The commits, newest first."""
        from delta.tables import DeltaTable

        found = DeltaTable.forPath(self.spark, self.target).history(newest)
        columns = ("version", "operation", "userMetadata", "operationMetrics")
        named = found.select(*columns, F.unix_millis("timestamp").alias("at_ms"))
        commits: list[Row] = named.orderBy(F.col("version").desc()).collect()
        return commits

    def _state(self, commit: Row) -> SyncState | None:
        described = json.loads(commit["userMetadata"])[_MARK]
        try:
            return None if described is None else SyncState.parse(json.dumps(described))
        except StateUnreadable as wrong:
            raise TargetRefused(
                self.target, f"version {commit['version']} of this Delta table: {wrong}"
            ) from wrong


def _need_mapping(names: Iterable[str]) -> bool:
    """True if Delta takes one of the names only with its column mapping."""
    return any(not _UNMAPPED.isdisjoint(name) for name in names)


def _refuse_others(target: str) -> None:
    """Refuse a directory with files of others, beside which Delta itself would make a table."""
    directory = Path(target.removeprefix("file:"))
    if directory.is_file():
        raise TargetRefused(target, "is a file; give a directory of its own")
    # Delta's own files may be left from an unfinished write.
    names = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    others = [name for name in names if not name.startswith(("part-", "_", "."))]
    if others:
        raise TargetRefused(
            target, f"it contains other files ({others[0]}); give an empty directory"
        )


def _is_ours(commit: Row) -> bool:
    return (commit["userMetadata"] or "").startswith(f'{{"{_MARK}"')


def _by_others(commits: Sequence[Row]) -> str | None:
    found = [commit for commit in commits if commit["operation"] not in _SAME_ROWS]
    return f"{found[-1]['operation']}, version {found[-1]['version']}" if found else None


@contextmanager
def _conflicts_as_busy(target: str) -> Iterator[None]:
    """https://docs.delta.io/latest/concurrency-control.html#conflict-exceptions"""
    from delta import exceptions

    conflicts = (
        exceptions.DeltaConcurrentModificationException,
        exceptions.ConcurrentWriteException,
        exceptions.MetadataChangedException,
        exceptions.ProtocolChangedException,
        exceptions.ConcurrentAppendException,
        exceptions.ConcurrentDeleteReadException,
        exceptions.ConcurrentDeleteDeleteException,
        exceptions.ConcurrentTransactionException,
    )
    try:
        yield
    except conflicts as conflict:
        raise TargetBusy(target) from conflict


# ``sync_table(to="delta")``: changes merged into a Delta table, the position in the same commit.
#
# Of two jobs at once one commits, and the other fails with TargetBusy and does the rest when it is
# run again. The table is rewritten after a truncation, after another program changed its rows, and
# where its row count differs from the manifest's.


def sync_delta(
    spark: SparkSession, given: Mapping[str, str], target: str, *, rebuild: bool
) -> SyncResult:
    """Bring the Delta table at ``target`` up to the archive's head.

    :raises DeltaMissing: if the session can't write Delta tables.
    :raises DeltaUnfit: if its Delta Lake is for another Spark.
    :raises ArchiveError, SyncError: as sync_table().
    """
    refuse_unfit(spark)
    with failing_as(target), own_session(spark) as own:
        table = TableRead.of(options.parse(given))
        return DeltaSync(own, given, target, table, DeltaLog(own, target)).run(rebuild=rebuild)


@dataclass(frozen=True)
class DeltaSync:
    """One table's sync into one Delta table."""

    spark: SparkSession
    given: Mapping[str, str]
    target: str
    table: TableRead
    log: DeltaLog

    def run(self, *, rebuild: bool) -> SyncResult:
        """Plan the sync and do it."""
        names = self.table.spark_schema().names
        merging.refuse_substituted(self.spark, self.target, names)
        merging.refuse_twins(self.spark, self.target, names)
        held = self.log.held()
        step = merging.step(
            self.target, held.state, held.by_others, self.table, self._is_counted, rebuild=rebuild
        )
        reach("sync.planned")
        if isinstance(step, UpToDate) and held.state is not None:
            return self._up_to_date(held, held.state)
        state = merging.next_state(held.state, self.table)
        after = held
        if isinstance(step, Merge) and held.state is not None:
            after = self._merged(held, held.state, state)
            if not self._is_counted():
                step, state = Rebuild(merging.MISCOUNTED), replace(state, version=state.version + 1)
        if isinstance(step, Rebuild):
            after = self._rebuilt(held, after, state)
        reach("sync.committed")
        return SyncResult(step, replace(state, rows=self._rows()), after.files_written)

    def _up_to_date(self, held: Held, state: SyncState) -> SyncResult:
        """Keep the rows; commit their epoch before retention removes it from the archive."""
        epoch = self.table.boundary.epoch
        if state.epoch != epoch or held.is_aged:
            state = replace(state, version=state.version + 1, epoch=epoch)
            nothing = self._frame().limit(0)
            with self.log.committing(state, state.table, held):
                nothing.write.format("delta").mode("append").save(self.target)
            self.log.committed(state)
        return SyncResult(UpToDate(), replace(state, rows=self._rows()), 0)

    def _rebuilt(self, held: Held, after: Held, state: SyncState) -> Held:
        """Rewrite all rows; restore the version before if the row count isn't the manifest's."""
        frame = frame_of(self.spark, {**self.given, **self.table.pinned()})
        writer = frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        if after.version != NO_TABLE:
            self._allow(frame.schema)
        elif _need_mapping(frame.columns):
            writer = writer.option(_MAPPING, "name")
        with self.log.committing(state, state.table, after):
            reach("sync.committing")
            writer.save(self.target)
        done = self.log.committed(state)
        if not self._is_counted():
            expected, found = self.table.row_count or 0, self._rows()
            self._take_back(held, done, state)
            raise TargetDiffers(self.target, self.table.boundary, expected, found)
        return done

    def _allow(self, schema: StructType) -> None:
        """Let the table have times without a zone, and names that Parquet can't have.

        https://docs.delta.io/latest/versioning.html
        https://docs.delta.io/latest/delta-column-mapping.html
        """
        from delta.tables import DeltaTable

        table, now = DeltaTable.forPath(self.spark, self.target), self._frame().schema
        with _conflicts_as_busy(self.target):
            if "timestamp_ntz" in schema.json() and "timestamp_ntz" not in now.json():
                table.addFeatureSupport("timestampNtz")
            if _need_mapping(schema.names):
                self._map_names(table.detail().select("location", "properties").collect()[0])

    def _map_names(self, detail: Row) -> None:
        if _MAPPING not in detail["properties"]:
            location = detail["location"]
            merging.refuse_substituted(self.spark, self.target, (location,))
            self.spark.sql(
                f"ALTER TABLE delta.{quoted(location)} SET TBLPROPERTIES ('{_MAPPING}' = 'name')"
            )

    def _take_back(self, held: Held, done: Held, state: SyncState) -> None:
        from delta.tables import DeltaTable

        target = DeltaTable.forPath(self.spark, self.target)
        before = held.state if held.by_others is None else None
        with self.log.committing(before, state.table, done):
            if held.version == NO_TABLE:
                target.delete()
            else:
                target.restoreToVersion(held.version)

    def _merged(self, held: Held, before: SyncState, state: SyncState) -> Held:
        from delta.tables import DeltaTable

        changes = merging.net_changes(self.spark, self.given, self.table, before)
        names = map(quoted, self.table.spark_schema().names)
        all_columns: dict[str, str | Column] = {name: f"new.{name}" for name in names}
        with self.log.committing(state, state.table, held):
            reach("sync.committing")
            DeltaTable.forPath(self.spark, self.target).alias("held").merge(
                changes.alias("new"), merging.same_key(self.table)
            ).whenMatchedDelete("new.__laredo_action = 'DELETE'").whenMatchedUpdate(
                set=all_columns
            ).whenNotMatchedInsert("new.__laredo_action != 'DELETE'", values=all_columns).execute()
        return self.log.committed(state)

    def _is_counted(self) -> bool:
        return self.table.row_count in (None, self._rows())

    def _rows(self) -> int:
        return self._frame().count()

    def _frame(self) -> DataFrame:
        return self.spark.read.format("delta").load(self.target)
