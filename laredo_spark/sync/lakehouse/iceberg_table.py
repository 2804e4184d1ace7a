"""An Iceberg table: the boundary that its main branch is at, and commits of syncs to it.

The snapshot of each sync names its boundary in its summary. It is made on a branch of the sync's
own; main is then moved to it, which Iceberg refuses if main isn't where the sync began: so of two
jobs at once only one commits, and rows are counted before anyone sees them.
https://iceberg.apache.org/docs/latest/spark-procedures/#fast_forward

Tags name the snapshots by epoch and position, for VERSION AS OF.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from secrets import token_hex
from threading import Lock
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from laredo_model import position as positions
from laredo_spark.sync.errors import TargetBusy, TargetRefused
from laredo_spark.sync.lakehouse.iceberg_fit import parts_of
from laredo_spark.sync.lakehouse.merging import quoted
from laredo_spark.sync.spark import FAILURES
from laredo_spark.sync.state import StateUnreadable, SyncState

MAIN = "main"
_MARK = "laredo"
_SUMMARY = f"spark.sql.iceberg.snapshot-property.{_MARK}"
_SHAPE = "laredo.shape"
"""The table's property with the columns that it was made of."""
_COMMIT_LOCK = Lock()
"""The setting of a commit is the session's, which other tables' syncs share."""
_NO_BOUNDARY = "null"
_SAME_ROWS = "replace"
_BRANCH = re.compile(r"laredo_sync_[0-9a-f]{8}")
_CONFLICTS = (
    "org.apache.iceberg.exceptions.CommitFailedException",
    "org.apache.iceberg.exceptions.AlreadyExistsException",
    "TABLE_OR_VIEW_ALREADY_EXISTS",
)


@dataclass(frozen=True)
class HeldSnapshot:
    """State of the main branch of an Iceberg table."""

    #: The boundary that a sync committed last; None if the table is at no boundary.
    state: SyncState | None = None
    #: The snapshot of that commit.
    synced: int | None = None
    #: The newest snapshot; None if there is no table.
    head: int | None = None
    #: What another program wrote since; None if nothing.
    by_others: str | None = None
    #: The snapshots of branches and tags.
    refs: Mapping[str, int] = field(default_factory=dict)
    #: The columns that the table was made of, as SyncState.shape.
    shape: str | None = None
    #: Its columns' names now.
    columns: tuple[str, ...] = ()
    #: The files that the newest sync wrote.
    files_written: int = 0


@dataclass(frozen=True)
class IcebergTable:
    """The Iceberg table ``target``: CATALOG.NAMESPACE.TABLE."""

    spark: SparkSession
    target: str

    @property
    def name(self) -> str:
        """Its name as Spark's SQL has it."""
        return ".".join(map(quoted, parts_of(self.target)))

    def held(self) -> HeldSnapshot:
        """Read what it is at.

        :raises TargetRefused: if no sync has made it.
        """
        if not self.spark.catalog.tableExists(self.name):
            return HeldSnapshot()
        # Spark keeps what it knows of the table, for half a minute and longer.
        self._sql(f"REFRESH TABLE {self.name}")
        refs = {row["name"]: row["snapshot_id"] for row in self._sql(f"TABLE {self.name}.refs")}
        properties = {
            row["key"]: row["value"] for row in self._sql(f"SHOW TBLPROPERTIES {self.name}")
        }
        if _SHAPE not in properties:
            raise TargetRefused(
                self.target, "is an Iceberg table that no sync has made; sync to another name"
            )
        snapshots = {row["snapshot_id"]: row for row in self._sql(f"TABLE {self.name}.snapshots")}
        columns = tuple(self.spark.table(self.name).columns)
        head, others = refs.get(MAIN), None
        at = head
        while at in snapshots and _MARK not in snapshots[at]["summary"]:
            if snapshots[at]["operation"] != _SAME_ROWS:
                others = others or f"{snapshots[at]['operation']}, snapshot {at}"
            at = snapshots[at]["parent_id"]
        if at not in snapshots:
            others = others or "the snapshot of the last sync has expired"
            return HeldSnapshot(None, None, head, others, refs, properties[_SHAPE], columns)
        summary = snapshots[at]["summary"]
        return HeldSnapshot(
            self._state(at, summary[_MARK]),
            at,
            head,
            others,
            refs,
            properties[_SHAPE],
            columns,
            int(summary.get("added-data-files", 0)),
        )

    def create(self, empty: DataFrame, shape: str) -> None:
        """Make the table, without rows and at no boundary.

        :raises TargetBusy: if another sync has made it meanwhile.
        """
        namespace = ".".join(map(quoted, parts_of(self.target)[:-1]))
        with self._conflicts_as_busy(), self._committing(None):
            self._sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
            empty.writeTo(self.name).using("iceberg").tableProperty(_SHAPE, shape).create()

    def replace(self, frame: DataFrame, state: SyncState, held: HeldSnapshot) -> None:
        """Replace columns and rows by those of ``frame``, in one commit; earlier ones stay tagged.

        :raises TargetBusy: if another sync has committed since ``held``.
        """
        if self._head() != held.head:
            raise TargetBusy(self.target)
        writer = frame.writeTo(self.name).using("iceberg").tableProperty(_SHAPE, state.shape)
        with self._conflicts_as_busy(), self._committing(state):
            writer.createOrReplace()

    @contextmanager
    def branch(self, state: SyncState, held: HeldSnapshot) -> Iterator[str]:
        """A branch from ``held``, whose name the block has; its commits are at ``state``.

        :raises TargetBusy: if another sync has committed since ``held``.
        """
        branch = f"laredo_sync_{token_hex(4)}"
        with self._conflicts_as_busy(held):
            self._alter(f"CREATE BRANCH {branch} AS OF VERSION {held.head}")
            try:
                with self._committing(state):
                    yield branch
            finally:
                self._alter(f"DROP BRANCH IF EXISTS {branch}")

    def name_of(self, branch: str) -> str:
        """The name under which Spark reads and writes a branch."""
        return f"{self.name}.branch_{branch}"

    def publish(self, branch: str, held: HeldSnapshot) -> None:
        """Move main from ``held`` to a branch's snapshot.

        :raises TargetBusy: if main is elsewhere now.
        """
        catalog, *rest = map(quoted, parts_of(self.target))
        with self._conflicts_as_busy(held):
            self._sql(
                f"CALL {catalog}.system.fast_forward("
                f"table => '{_text('.'.join(rest))}', branch => '{MAIN}', to => '{branch}')"
            )

    def tag(self, held: HeldSnapshot) -> None:
        """Name the newest sync's snapshot; drop branches of jobs that were killed."""
        if held.state is None or held.synced is None:
            return
        tag = tag_of(held.state)
        with self._conflicts_as_busy():
            if held.refs.get(tag) != held.synced:
                self._alter(f"CREATE OR REPLACE TAG `{tag}` AS OF VERSION {held.synced}")

    def drop_abandoned(self, held: HeldSnapshot) -> None:
        """Drop the branches of other syncs, which can't be published after this one."""
        with self._conflicts_as_busy():
            for branch in filter(_BRANCH.fullmatch, held.refs):
                self._alter(f"DROP BRANCH IF EXISTS {branch}")

    def _head(self) -> int | None:
        self._sql(f"REFRESH TABLE {self.name}")
        refs = self._sql(f"SELECT snapshot_id FROM {self.name}.refs WHERE name = '{MAIN}'")
        return refs[0]["snapshot_id"] if refs else None

    def _state(self, snapshot: Any, described: str) -> SyncState | None:
        try:
            return None if described == _NO_BOUNDARY else SyncState.parse(described)
        except StateUnreadable as wrong:
            raise TargetRefused(self.target, f"its snapshot {snapshot}: {wrong}") from wrong

    def _alter(self, change: str) -> None:
        self._sql(f"ALTER TABLE {self.name} {change}")

    def _sql(self, statement: str) -> list[Any]:
        return self.spark.sql(statement).collect()

    @contextmanager
    def _committing(self, state: SyncState | None) -> Iterator[None]:
        described = _NO_BOUNDARY
        if state is not None:
            described = json.dumps(json.loads(state.to_json()))
        with _COMMIT_LOCK:
            self.spark.conf.set(_SUMMARY, described)
            try:
                yield
            finally:
                self.spark.conf.unset(_SUMMARY)

    @contextmanager
    def _conflicts_as_busy(self, held: HeldSnapshot | None = None) -> Iterator[None]:
        try:
            yield
        except FAILURES as failure:
            if any(name in str(failure) for name in _CONFLICTS):
                raise TargetBusy(self.target) from failure
            if held is not None and self._head() != held.head:
                raise TargetBusy(self.target) from failure
            raise


def tag_of(state: SyncState) -> str:
    """The tag of a boundary: ``epoch_3_at_0_1A2B3C``."""
    return f"epoch_{state.epoch}_at_{positions.text(state.position).replace('/', '_')}"


def _text(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")
