"""``sync_table(to="iceberg")``: changes merged into an Iceberg table, position in its snapshot.

The snapshot of each sync names its boundary in its summary. It is made on a branch of the sync's
own; main is then moved to it, which Iceberg refuses if main isn't where the sync began: so of two
jobs at once only one commits, and rows are counted before anyone sees them.
https://iceberg.apache.org/docs/latest/spark-procedures/#fast_forward

Tags name the snapshots by epoch and position, for VERSION AS OF.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

from laredo_archive.failpoint import reach
from laredo_model import position as positions
from laredo_spark import options
from laredo_spark.read.table_read import TableRead
from laredo_spark.session import quoted
from laredo_spark.sync import merging
from laredo_spark.sync.errors import (
    IcebergMissing,
    IcebergUnfit,
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
from laredo_spark.sync.spark import FAILURES, failing_as, frame_of, own_session

# Checks that a Spark session has Iceberg, one made for its Spark, and the target's catalog.
#
# Iceberg's runtime is compiled for one minor release of Spark, which its JAR is named after.

EXTENSION = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
EXTENSIONS_SETTING = "spark.sql.extensions"
RUNTIMES = {"4.0": "1.12.0", "4.1": "1.12.0"}
"""Spark's minor releases for which there is a runtime, and its version."""
_SCALA = "2.13"
_CATALOGS = "org.apache.iceberg.spark.Spark"
_RUNTIME = re.compile(r"iceberg-spark-runtime-(\d+\.\d+)_[\d.]+-(\d[\w.]*?)\.jar")
_PART = re.compile(r"`((?:[^`]|``)+)`|([^`.\s/]+)")
_LEAST_PARTS = 3


def refuse_unfit(spark: SparkSession, target: str) -> None:
    """Refuse a session that can't write the Iceberg table ``target``.

    :raises TargetRefused: if that isn't the name of a table in a catalog.
    :raises IcebergMissing: if Iceberg, its extension or the catalog isn't in the session.
    :raises IcebergUnfit: if its runtime is for another Spark.
    """
    catalog = parts_of(target)[0]
    refuse_other_spark(spark.version, _jars(spark))
    if not _is_loaded(spark):
        raise IcebergMissing("there is no iceberg-spark-runtime in it")
    if EXTENSION not in (spark.conf.get(EXTENSIONS_SETTING, "") or ""):
        raise IcebergMissing(f"{EXTENSIONS_SETTING} lacks {EXTENSION}")
    setting = f"spark.sql.catalog.{catalog}"
    if not (spark.conf.get(setting, "") or "").startswith(_CATALOGS):
        raise IcebergMissing(f"{setting} isn't org.apache.iceberg.spark.SparkCatalog")


def refuse_other_spark(version: str, jars: str) -> None:
    """Refuse a runtime of Iceberg among ``jars`` (names or paths) that is for another Spark.

    :raises IcebergUnfit: if there is one.
    """
    for spark, iceberg in _RUNTIME.findall(jars):
        if spark != _minor(version):
            raise IcebergUnfit(iceberg, spark, version)


def settings() -> dict[str, str]:
    """Spark's settings that load Iceberg's runtime for the installed PySpark; no catalog.

    :raises IcebergMissing: if there is none for it.
    """
    spark = _minor(pyspark.__version__)
    if spark not in RUNTIMES:
        raise IcebergMissing(f"there is none for Spark {spark}")
    package = f"org.apache.iceberg:iceberg-spark-runtime-{spark}_{_SCALA}:{RUNTIMES[spark]}"
    return {"spark.jars.packages": package, EXTENSIONS_SETTING: EXTENSION}


def parts_of(target: str) -> tuple[str, ...]:
    """The parts of CATALOG.NAMESPACE.TABLE; those with other characters are in backticks.

    :raises TargetRefused: if it isn't such a name.
    """
    parts, at = [], 0
    while found := _PART.match(target, at):
        parts.append(found[1].replace("``", "`") if found[1] else found[2])
        at = found.end() + 1
        if at > len(target) or target[at - 1] != ".":
            break
    if at != len(target) + 1 or len(parts) < _LEAST_PARTS:
        raise TargetRefused(target, "an Iceberg target is a table's name: CATALOG.NAMESPACE.TABLE")
    return tuple(parts)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _jars(spark: SparkSession) -> str:
    """The session's JARs and the JVM's class path; by SQL, as there may be no JVM at our side."""
    added = [row[0] for row in spark.sql("LIST JARS").collect()]
    path = _java(spark, "'java.lang.System', 'getProperty', 'java.class.path'")
    return "\n".join([*added, path])


def _is_loaded(spark: SparkSession) -> bool:
    try:
        _java(spark, "'org.apache.iceberg.IcebergBuild', 'version'")
    except FAILURES:
        return False
    return True


def _java(spark: SparkSession, call: str) -> str:
    found: str = spark.sql(f"SELECT java_method({call})").collect()[0][0]
    return found


MAIN = "main"
_MARK = "laredo"
_SUMMARY = f"spark.sql.iceberg.snapshot-property.{_MARK}"
_SHAPE = "laredo.shape"
"""The table's property with the columns that it was made of."""
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

    #: The sync's own session, as each commit changes its settings.
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
        self.refresh()
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

    def refresh(self) -> None:
        """Have the session read it again; it keeps what it knows for half a minute and longer."""
        self._sql(f"REFRESH TABLE {self.name}")

    def _head(self) -> int | None:
        self.refresh()
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
        described = _NO_BOUNDARY if state is None else json.dumps(state.to_json())
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


# ``sync_table(to="iceberg")``: changes merged into an Iceberg table, the position in its snapshot.
#
# Of two jobs at once one commits, and the other fails with TargetBusy and does the rest when it is
# run again. The table is rewritten for the reasons for which a Delta table is.


def sync_iceberg(
    spark: SparkSession, given: Mapping[str, str], target: str, *, rebuild: bool
) -> SyncResult:
    """Bring the Iceberg table ``target``, CATALOG.NAMESPACE.TABLE, up to the archive's head.

    :raises IcebergMissing: if the session can't write Iceberg tables.
    :raises IcebergUnfit: if its Iceberg is for another Spark.
    :raises ArchiveError, SyncError: as sync_table().
    """
    refuse_unfit(spark, target)
    with failing_as(target):
        table = TableRead.of(options.parse(given))
        try:
            with own_session(spark) as own:
                found = IcebergTable(own, target)
                done = IcebergSync(own, given, table, found).run(rebuild=rebuild)
        except BaseException:
            # The sync's own failure is the one to report, also where Spark is gone.
            with suppress(Exception):
                _refresh(spark, target)
            raise
        _refresh(spark, target)
        return done


def _refresh(spark: SparkSession, target: str) -> None:
    seen = IcebergTable(spark, target)
    if spark.catalog.tableExists(seen.name):
        seen.refresh()


@dataclass(frozen=True)
class IcebergSync:
    """One table's sync into one Iceberg table."""

    spark: SparkSession
    given: Mapping[str, str]
    table: TableRead
    found: IcebergTable

    def run(self, *, rebuild: bool) -> SyncResult:
        """Plan the sync and do it."""
        target = self.found.target
        merging.refuse_substituted(self.spark, target, (target, *self._names()))
        merging.refuse_twins(self.spark, target, self._names())
        held = self.found.held()
        step = merging.step(
            target,
            held.state,
            self._by_others(held),
            self.table,
            self._is_counted,
            rebuild=rebuild,
        )
        reach("sync.planned")
        self.found.tag(held)
        if isinstance(step, UpToDate) and held.state is not None:
            return self._up_to_date(held, held.state)
        state = merging.next_state(held.state, self.table)
        is_merged = isinstance(step, Merge) and self._merged(held, state)
        if isinstance(step, Merge) and not is_merged:
            step = Rebuild(merging.MISCOUNTED)
        if isinstance(step, Rebuild):
            self._rebuilt(held, state)
        return self._committed(step, state)

    def _by_others(self, held: HeldSnapshot) -> str | None:
        is_ours = held.state is not None and held.state.shape == merging.shape_of(self.table)
        if is_ours and held.columns != self._names():
            return "its columns were altered"
        return held.by_others

    def _committed(self, step: Merge | Rebuild | UpToDate, state: SyncState) -> SyncResult:
        reach("sync.committed")
        done = self.found.held()
        self.found.tag(done)
        self.found.drop_abandoned(done)
        files = 0 if isinstance(step, UpToDate) else done.files_written
        return SyncResult(step, replace(state, rows=self._rows(self.found.name)), files)

    def _up_to_date(self, held: HeldSnapshot, state: SyncState) -> SyncResult:
        """Keep the rows; commit their epoch before retention removes it from the archive."""
        epoch = self.table.boundary.epoch
        if state.epoch == epoch:
            return SyncResult(UpToDate(), replace(state, rows=self._rows(self.found.name)), 0)
        state = replace(state, version=state.version + 1, epoch=epoch)
        with self.found.branch(state, held) as branch:
            name = self.found.name_of(branch)
            self.spark.table(name).limit(0).writeTo(name).append()
            self.found.publish(branch, held)
        return self._committed(UpToDate(), state)

    def _rebuilt(self, held: HeldSnapshot, state: SyncState) -> None:
        """Rewrite all rows in one commit, unless the row count isn't the manifest's."""
        frame = frame_of(self.spark, {**self.given, **self.table.pinned()})
        if held.head is None:
            self.found.create(frame.limit(0), state.shape)
            held = self.found.held()
        if (held.shape, held.columns) != (state.shape, self._names()):
            # New columns are seen at once on all branches: the rows are counted before.
            [counted] = frame.agg(F.count(frame[self.table.key_names[0]])).collect()
            self._refuse_other_count(counted[0])
            reach("sync.committing")
            self.found.replace(frame, state, held)
            return
        with self.found.branch(state, held) as branch:
            reach("sync.committing")
            frame.writeTo(self.found.name_of(branch)).overwrite(F.lit(True))
            self._refuse_other_count(self._rows(self.found.name_of(branch)))
            reach("sync.staged")
            self.found.publish(branch, held)

    def _merged(self, held: HeldSnapshot, state: SyncState) -> bool:
        """Merge what changed since ``held``; False, and nothing, if the row count isn't right."""
        assert held.state is not None
        changes = merging.net_changes(self.spark, self.given, self.table, held.state)
        changes.createOrReplaceTempView("laredo_changes")
        names = [quoted(name) for name in self._names()]
        with self.found.branch(state, held) as branch:
            reach("sync.committing")
            self.spark.sql(
                f"MERGE INTO {self.found.name_of(branch)} AS held USING laredo_changes AS new"
                f" ON {merging.same_key(self.table)}"
                " WHEN MATCHED AND new.__laredo_action = 'DELETE' THEN DELETE"
                f" WHEN MATCHED THEN UPDATE SET {', '.join(f'{n} = new.{n}' for n in names)}"
                " WHEN NOT MATCHED AND new.__laredo_action != 'DELETE' THEN INSERT"
                f" ({', '.join(names)}) VALUES ({', '.join(f'new.{n}' for n in names)})"
            )
            is_right = self._is_right(self._rows(self.found.name_of(branch)))
            reach("sync.staged")
            if is_right:
                self.found.publish(branch, held)
        return is_right

    def _names(self) -> tuple[str, ...]:
        return tuple(self.table.spark_schema().names)

    def _refuse_other_count(self, found: int) -> None:
        if not self._is_right(found):
            expected = self.table.row_count or 0
            raise TargetDiffers(self.found.target, self.table.boundary, expected, found)

    def _is_counted(self) -> bool:
        return self._is_right(self._rows(self.found.name))

    def _is_right(self, rows: int) -> bool:
        return self.table.row_count in (None, rows)

    def _rows(self, name: str) -> int:
        return self.spark.table(name).count()
