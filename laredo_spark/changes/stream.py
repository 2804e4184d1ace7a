"""``spark.readStream.format("laredo")``: an archive's changes as they are committed.

The rows are those of mode changes. An offset is the position, epoch and history of a boundary, and
the table's name, so a restart continues from the checkpoint, whatever was re-based meanwhile, and
refuses another table's; a batch that was planned before the restart has the same changes after it.
The first batch is empty: it records where the stream begins, since ``after = head`` would mean
another boundary later.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from laredo_archive.manifest.chain import (
    NextArtifact,
    ReaderPosition,
    following,
    is_behind,
    mark_now,
)
from laredo_archive.reader import Archive
from laredo_model import position as positions
from laredo_model.errors import BadPosition
from laredo_spark.changes.plan import (
    Pinned,
    opened,
    pinned_now,
    start_of,
    steps_between,
    unfold_between,
)
from laredo_spark.changes.reader import ChangesPartition, keys_of, partitions
from laredo_spark.errors import (
    ArchiveBehind,
    BoundaryGone,
    ChangesGone,
    CheckpointOfOther,
    ColumnsChanged,
    OffsetUnreadable,
    OptionRefused,
    each_in_one_message,
    in_one_message,
)
from laredo_spark.options import OnGap, ReadOptions

Offset = dict[str, str | int]
_NOT_BEGUN: Offset = {"position": "", "epoch": 0, "history": ""}


class ChangesStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's streaming reader of changes: plans each micro-batch on the driver."""

    def __init__(self, asked: ReadOptions, schema: StructType, pinned: Pinned | None) -> None:
        """:raises OptionRefused: if an option doesn't go with a stream."""
        if asked.until is not None:
            raise OptionRefused("until", str(asked.until), "a stream has no end")
        if asked.merged:
            raise OptionRefused("merged", "true", "a stream reads each diff as it comes")
        self._asked = asked
        self._schema = schema
        self._archive = opened(asked)
        self._shape = (pinned or pinned_now(self._archive, asked)).shape
        now = self._shape.spark_schema()
        if now != schema:
            raise ColumnsChanged(self._archive.uri, schema.simpleString(), now.simpleString())
        self._last: Archive | None = None

    def __getstate__(self) -> dict[str, object]:
        """The state for tasks, which only read: the archive's clients stay on the driver."""
        return {"_schema": self._schema}

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """The offset of a stream that hasn't begun."""
        return dict(_NOT_BEGUN)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit of option max_diffs_per_trigger."""
        most = self._asked.max_diffs
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    @in_one_message
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End this run at the archive's present head."""
        self._last = self._refreshed()

    @in_one_message
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """The end of the next batch; ``start`` itself if there is nothing new.

        :raises CheckpointOfOther: if ``start`` is of another table.
        :raises ChangesGone: if no diff leads on from there, and ``on_gap`` is fail.
        :raises ArchiveBehind: if the archive ends before it.
        :raises ColumnsChanged: if what comes next has other columns than the query.
        """
        archive = self._refreshed()
        if start == _NOT_BEGUN:
            return _offset(archive, start_of(self._last or archive, self._asked))
        mark = _mark(archive, start)
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        unfold_between(archive, mark, None, most)
        if is_behind(archive.epochs, mark):
            raise ArchiveBehind(archive.uri, mark, archive.boundary())
        reached = self._reached(archive, mark, most)
        return start if reached == mark else _offset(archive, reached)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """The archive's head, by the manifest that was read last."""
        archive = self._archive
        head = archive.boundaries[-1] if archive.boundaries else None
        return None if head is None else _offset(archive, ReaderPosition.of(head))

    def _refreshed(self) -> Archive:
        self._archive = self._archive.refreshed()
        return self._archive

    def _reached(self, archive: Archive, start: ReaderPosition, most: int | None) -> ReaderPosition:
        goal = self._goal(archive)
        if goal == mark_now(archive.epochs, start) is not None:
            return start
        at, taken = start, 0
        for step in following(archive.epochs, start):
            taken += step.has_rows
            problem = self._problem(archive, step, at)
            if problem is not None and at == start:
                raise problem
            if problem is not None or (most is not None and taken > most):
                break
            at = step.mark
            if at == goal:
                break
        return at

    def _goal(self, archive: Archive) -> ReaderPosition | None:
        """The end of a run with trigger availableNow; None for any other trigger."""
        if self._last is None:
            return None
        return mark_now(archive.epochs, ReaderPosition.of(self._last.boundary()))

    def _problem(
        self, archive: Archive, step: NextArtifact, at: ReaderPosition
    ) -> Exception | None:
        if step.gap is not None and self._asked.on_gap is OnGap.FAIL:
            return ChangesGone(archive.uri, at, step.gap)
        columns = step.epoch.base.columns
        if step.epoch.number > self._shape.epoch and not self._shape.fits(columns):
            now = ", ".join(f"{column.name} {column.type}" for column in columns or ())
            return ColumnsChanged(
                archive.uri, self._schema.simpleString(), f"({now or 'not named'})"
            )
        return None

    @in_one_message
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The changes between two offsets; the same whenever it is asked.

        :raises CheckpointOfOther: if they are of another table.
        :raises BoundaryGone: if retention has removed them since they were planned.
        """
        if start in (end, _NOT_BEGUN):
            return []
        archive = self._refreshed()
        first, last = _mark(archive, start), _mark(archive, end)
        unfold_between(archive, first, last)
        try:
            steps = steps_between(archive, first, last, self._asked.on_gap)
        except BoundaryGone:
            if self._asked.on_gap is OnGap.FAIL:
                raise
            # The batch after this one finds the same gap, and has a whole base.
            steps = ()
        return partitions(self._asked, archive, steps, self._shape, keys_of(self._asked))

    @each_in_one_message
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One partition's changes, in Arrow batches."""
        if isinstance(partition, ChangesPartition):
            yield from partition.batches(self._schema)


def _offset(archive: Archive, mark: ReaderPosition) -> Offset:
    position = "" if mark.position is None else positions.text(mark.position)
    known: Offset = {"position": position, "epoch": mark.epoch, "history": mark.history}
    return {**known, "table": archive.manifest.table}


def _mark(archive: Archive, offset: Mapping[str, str | int]) -> ReaderPosition:
    try:
        text = str(offset["position"])
        position = positions.parse(text) if text else None
        mark = ReaderPosition(int(offset["epoch"]), position, str(offset["history"]))
    except (KeyError, ValueError, BadPosition) as wrong:
        raise OffsetUnreadable(dict(offset)) from wrong
    # Offsets of earlier versions name no table.
    table = offset.get("table", archive.manifest.table)
    if table != archive.manifest.table:
        raise CheckpointOfOther(archive.uri, archive.manifest.table, table)
    return mark
