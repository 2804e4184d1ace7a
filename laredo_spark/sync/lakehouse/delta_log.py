"""A Delta table's log: the boundary of the last sync, and writes of other programs since.

Each commit of a sync names its boundary in the commit's userMetadata. Its transaction's version
(txnAppId, txnVersion) is greater than all before, and Delta skips a write whose version is
recorded already: so of two jobs that planned on the same log only one commits.
https://docs.delta.io/latest/delta-batch.html#idempotent-writes

Delta drops commits from its log after delta.logRetentionDuration (30 days) when there are later
ones; a sync of an unchanged target therefore commits its boundary again once a week.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

from laredo_spark.sync.errors import TargetBusy, TargetRefused
from laredo_spark.sync.state import StateUnreadable, SyncState

AGED_S = 7 * 86400.0
"""Seconds after which a sync's newest commit is repeated."""
NO_TABLE = -1
_MARK = "laredo"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_APP = "spark.databricks.delta.write.txnAppId"
_TXN = "spark.databricks.delta.write.txnVersion"
_COMMIT_LOCK = Lock()
"""The settings of a commit are the session's, which other tables' syncs share."""
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
        return Held(
            self._state(ours),
            commits[0]["version"],
            _by_others(commits[: commits.index(ours)]),
            time.time() - ours["at_ms"] / 1000 > AGED_S,
            sum(int(ours["operationMetrics"].get(name, 0)) for name in _FILES_WRITTEN),
        )

    @contextmanager
    def committing(self, state: SyncState | None, table: str, after: Held) -> Iterator[None]:
        """Writes in the block commit that the rows are at ``state``; None: at no boundary.

        :raises TargetBusy: if another sync has committed since ``after``.
        """
        described = None if state is None else json.loads(state.to_json())
        settings = {
            _METADATA: json.dumps({_MARK: described}),
            _APP: f"{_MARK}:{table}",
            _TXN: str(after.version + 1),
        }
        with _COMMIT_LOCK, _conflicts_as_busy(self.target):
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
