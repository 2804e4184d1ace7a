"""``sync_table(to="parquet")``: Spark's tasks write files, which one rename commits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq

from laredo_archive.failpoint import reach
from laredo_archive.manifest import key_ranges
from laredo_archive.manifest.key_ranges import KeyRange
from laredo_archive.manifest.timeline import Boundary
from laredo_spark import options
from laredo_spark.errors import OptionRefused
from laredo_spark.options import ReadOptions
from laredo_spark.read.table_read import TableRead
from laredo_spark.read.table_reader import TableReader
from laredo_spark.sync import plan
from laredo_spark.sync.errors import TargetDiffers, TargetRefused
from laredo_spark.sync.files import AdjacentFiles, BuildFiles, MergeFiles, comparable
from laredo_spark.sync.folder import Folder, LocalFolder
from laredo_spark.sync.plan import Merge, Rebuild, SyncAction, UpToDate
from laredo_spark.sync.state import SyncedFile, SyncState
from laredo_spark.sync.target import SyncTarget

T = TypeVar("T")
R = TypeVar("R")

FILE_BYTES = 16 << 20
"""About how many bytes of the archive one file's range has: the distance of a base's splits."""
DIFF_BYTES = 64 << 20
"""About the most bytes of diffs that one task holds."""
GROWN = 4
"""All files are rewritten once one has this many times the rows of the largest at the last
rebuild."""
_NOT_FOR_A_SYNC = frozenset({*options.OF_CHANGES, "mode", "lines"})
_SMALL_ROWS = 100_000
_TASKS_A_CORE = 2
_NOT_WHOLE = "its files aren't as they were written"


@dataclass(frozen=True)
class Engine:
    """Runs a sync's tasks; Spark, outside of tests."""

    #: Applies a function to each item, in tasks, and returns the results.
    run: Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]
    #: Writes read_table() with these options as Parquet files into a directory.
    write: Callable[[Mapping[str, str], Path], None]
    #: The number of tasks that run at the same time.
    cores: int


@dataclass(frozen=True)
class SyncResult:
    """A finished sync."""

    #: What it did.
    step: SyncAction
    #: The target's state after it.
    state: SyncState
    #: The number of files that it wrote.
    files_written: int


class ParquetSync:
    """One table's sync into one target; the caller holds the target's lock."""

    def __init__(self, target: SyncTarget, given: Mapping[str, str], engine: Engine) -> None:
        self._target = target
        self._given = given
        self._engine = engine
        self._table = TableRead.of(options.parse(given))

    def run(self, *, rebuild: bool = False) -> SyncResult:
        """Bring the target up to the archive's head.

        :raises ArchiveError: if the archive can't be read.
        :raises SyncError: if the target can't be written.
        """
        held = self._target.state()
        step = self._step(held, rebuild=rebuild)
        reach("sync.planned")
        if isinstance(step, UpToDate) and held is not None:
            return self._up_to_date(held)
        with self._target.staging() as staging:
            kept: Sequence[SyncedFile] = ()
            if isinstance(step, Merge) and held is not None:
                files = self._merged(step, held, staging)
                kept = [file for file in files if file in held.files]
                state = self._state(held, files, built_rows=held.built_rows)
            else:
                files, in_ranges = self._built(staging)
                largest = max((file.rows for file in files), default=0)
                state = self._state(held, files, built_rows=largest, in_ranges=in_ranges)
            reach("sync.staged")
            self._compare(state)
            self._target.commit(state, staging, kept)
        return SyncResult(step, state, len(state.files) - len(kept))

    def _step(self, held: SyncState | None, *, rebuild: bool) -> SyncAction:
        if rebuild:
            return Rebuild("it was asked for")
        if held is None:
            return plan.step(self._target, None, self._table)
        found = plan.step(self._target, held, self._table)
        if isinstance(found, UpToDate) and not self._target.is_whole(held):
            return Rebuild(_NOT_WHOLE)
        why = self._unfit(held) if isinstance(found, Merge) else None
        return found if why is None else Rebuild(why)

    def _unfit(self, held: SyncState) -> str | None:
        """Why nothing can be merged into the target's files; None if it can."""
        if not self._target.is_whole(held):
            return _NOT_WHOLE
        if not held.in_ranges:
            return "its files aren't ranges of keys, as the archive isn't sorted"
        if not comparable(self._table.columns, self._table.shape):
            return "rows can't be distinguished by their key columns in Parquet"
        if any(file.rows > GROWN * max(held.built_rows, _SMALL_ROWS) for file in held.files):
            return "some of its files have grown large"
        return None

    def _up_to_date(self, held: SyncState) -> SyncResult:
        if held.epoch != self._table.boundary.epoch:
            held = replace(held, epoch=self._table.boundary.epoch)
            self._target.recorded(held)
        return SyncResult(UpToDate(), held, 0)

    def _pinned(self) -> dict[str, str]:
        return {**self._given, **self._table.pinned()}

    def _built(self, staging: Folder) -> tuple[list[SyncedFile], bool]:
        """Rewrite all files; True if they are ranges of keys."""
        if not self._table.has_ranges:
            return self._written_by_spark(staging), False
        table = self._table
        size = sum(table.choose(artifact)[1].size_bytes for artifact in table.boundary.artifacts)
        parts = max(self._engine.cores * _TASKS_A_CORE, -(-size // FILE_BYTES))
        asked = options.parse({**self._pinned(), "partitions": str(parts)})
        schema = table.spark_schema()
        reader = TableReader(asked, schema)
        build = BuildFiles(reader, schema, staging)
        done: list[list[SyncedFile]] = self._engine.run(build, list(reader.partitions()))
        return [file for files in done for file in files], True

    def _written_by_spark(self, staging: Folder) -> list[SyncedFile]:
        """Files that Spark writes, after it has folded an archive without order."""
        if not isinstance(staging, LocalFolder):
            raise TargetRefused(
                self._target,
                "this archive isn't sorted by key, so Spark itself has to write the files: give a"
                " directory that all of its workers see, or keep the table with to = delta",
            )
        self._engine.write(self._pinned(), staging.path)
        return [
            SyncedFile(file.name, None, None, pq.read_metadata(file).num_rows, file.stat().st_size)
            for file in sorted(staging.path.glob("part-*.parquet"))
        ]

    def _merged(self, step: Merge, held: SyncState, staging: Folder) -> list[SyncedFile]:
        merge = MergeFiles(
            self._table.shape,
            self._table.objects(),
            self._table.spark_schema(),
            self._target.shown(),
            staging,
            step.truncates,
        )
        adjacent = self._adjacent(step, held.files)
        done: list[list[SyncedFile]] = self._engine.run(merge, adjacent)
        return [file for files in done for file in files]

    def _adjacent(self, step: Merge, files: Sequence[SyncedFile]) -> list[AdjacentFiles]:
        """As many tasks as cores; more if the diffs are large."""
        size = sum(self._table.choose(diff)[1].size_bytes for diff in step.diffs)
        count = min(len(files), max(self._engine.cores, -(-size // DIFF_BYTES)))
        cut = partial(key_ranges.cut, Boundary.after(step.diffs), self._table.choose)
        ends = [len(files) * number // count for number in range(count + 1)]
        groups = [tuple(files[start:end]) for start, end in pairwise(ends)]
        return [
            AdjacentFiles(group, cut(KeyRange(group[0].keys.low, group[-1].keys.high)))
            for group in groups
        ]

    def _state(
        self,
        held: SyncState | None,
        files: Sequence[SyncedFile],
        *,
        built_rows: int,
        in_ranges: bool = True,
    ) -> SyncState:
        boundary = self._table.boundary
        return SyncState(
            version=1 if held is None else held.version + 1,
            table=self._table.archive.manifest.table,
            history=plan.history_text(boundary),
            epoch=boundary.epoch,
            position=boundary.position,
            shape=plan.shape_of(self._table),
            rows=sum(file.rows for file in files),
            in_ranges=in_ranges,
            built_rows=built_rows,
            files=tuple(files),
        )

    def _compare(self, state: SyncState) -> None:
        """With the manifest, where that says how many rows there are."""
        expected = plan.expected_rows(self._table)
        if expected is not None and expected != state.rows:
            raise TargetDiffers(self._target, self._table.boundary, expected, state.rows)


def given_options(asked: Mapping[str, object]) -> dict[str, str]:
    """Options as Spark's texts; None is left out.

    :raises OptionRefused: naming the first that can't be used, or isn't for a sync.
    """
    texts = options.as_options(asked)
    for name in texts.keys() & _NOT_FOR_A_SYNC:
        raise OptionRefused(name, texts[name], "a sync reads what its target lacks; leave it out")
    _checked: ReadOptions = options.parse(texts)
    return texts
