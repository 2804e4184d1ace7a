"""``sync_table`` and ``sync_catalog``: tables kept up to date with their archives.

sync_table(spark, "s3://bucket/users/", to="delta", target="s3a://lake/users")

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
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from laredo_archive.errors import ArchiveError
from laredo_archive.storage.destination import is_plain
from laredo_model import position as positions
from laredo_model.errors import ModelError
from laredo_model.position import Position
from laredo_spark import options
from laredo_spark.errors import OptionRefused, SparkReadError
from laredo_spark.session import quoted
from laredo_spark.sync.delta import sync_delta
from laredo_spark.sync.errors import TargetRefused
from laredo_spark.sync.iceberg import sync_iceberg
from laredo_spark.sync.merging import Merge, Rebuild, UpToDate
from laredo_spark.tables import archives_of, choose, pins

FORMATS: Final = {"delta": sync_delta, "iceberg": sync_iceberg}
"""The formats of targets, each with the function that brings a target up to date."""

TABLE_FAILURES: Final = (ArchiveError, SparkReadError, ModelError, OSError, PySparkException)
"""Failures of one table, or one catalog, that leave the others alone."""

_NOT_FOR_A_SYNC = frozenset({*options.OF_CHANGES, "mode", "lines"})
_FORMATS = (
    "delta or iceberg. A table of plain Parquet files is no longer kept up to date; write one once"
    " with laredo-archive export, or with write.parquet() of read_table()'s DataFrame"
)


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
    #: The target's format: delta or iceberg.
    to: str
    #: Whether the target is rewritten whatever it holds.
    rebuild: bool = False
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
    to: str = "",
    target: str | Path = "",
    *,
    rebuild: bool = False,
    **given: object,
) -> Synced:
    """Bring ``target`` up to the head of the archive at ``path``.

    ``to``: ``delta``, and ``target`` is a directory or a bucket's prefix; or ``iceberg``, and it is
    a table, CATALOG.NAMESPACE.TABLE.

    ``rebuild`` rewrites it whatever it holds. ``given``: options of
    :mod:`laredo_spark.options` for access to S3 and for types of columns.

    :raises ArchiveError: if the archive can't be read.
    :raises SyncError: if the target can't be written; it is left as it was.
    :raises OptionRefused: if an option can't be used.
    """
    refuse_unusable(to, target)
    begun = time.monotonic()
    asked = given_options({**given, "path": path})
    written = FORMATS[to](spark, asked, str(target), rebuild=rebuild)
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
    """Refuse an unknown format, and a missing target.

    :raises OptionRefused: naming the option.
    """
    refuse_unknown(to)
    if not str(target):
        raise OptionRefused("target", "", "a directory, a bucket's prefix or a table's name")


def refuse_unknown(to: str) -> str:
    """Return a known format.

    :raises OptionRefused: if it is unknown.
    """
    if to not in FORMATS:
        raise OptionRefused("to", to, _FORMATS)
    return to


def given_options(asked: Mapping[str, object]) -> dict[str, str]:
    """Options as Spark's texts; None is left out.

    :raises OptionRefused: naming the first that can't be used, or isn't for a sync.
    """
    texts = options.as_options(asked)
    for name in texts.keys() & _NOT_FOR_A_SYNC:
        raise OptionRefused(
            name,
            texts[name],
            "a sync always reads the changes that its target lacks; remove the option",
        )
    options.parse(texts)
    return texts


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
                rebuild=job.rebuild, **job.options,
            )  # fmt: skip
            done = Done(job, synced)
        except TABLE_FAILURES as failure:
            done = Done(job, failure=failure)
        on_done(done)
        return done

    with ThreadPoolExecutor(parallel, "laredo-sync") as pool:
        return list(pool.map(run, jobs))


# ``sync_catalog``: every table of a catalog into a target of its own, all at one position.
#
#     sync_catalog(spark, "s3://bucket/laredo/", to="delta", target="/data")   # /data/public.users
#
# The position is chosen before the first table is synced. Each target records its own position, so
# after a job that was killed between two tables the next one brings all to one position again.


def sync_catalog(
    spark: SparkSession,
    path: str,
    to: str = "",
    target: str | Path = "",
    *,
    tables: Sequence[str] | None = None,
    rebuild: bool = False,
    parallel: int = 1,
    on_done: Callable[[Done], None] = lambda done: None,
    **given: object,
) -> list[Done]:
    """Bring ``target``/NAME up to the newest common position for each table of the catalog.

    For Iceberg the tables are ``target``.NAME: ``lake.public.users`` with ``target`` = ``lake``.
    ``tables``: these names only. A table that fails doesn't stop the others. The other arguments
    are those of :func:`sync_table`.

    :raises CatalogMissing, CatalogUnusable: if there is no such catalog.
    :raises NoCommonBoundary, ArchiveError, OptionRefused: as :func:`read_catalog`.
    """
    jobs = catalog_jobs(path, str(target), to, tables=tables, rebuild=rebuild, given=given)
    return sync_tables(spark, jobs, parallel=parallel, on_done=on_done)


def catalog_jobs(
    path: str,
    target: str,
    to: str,
    *,
    tables: Sequence[str] | None,
    rebuild: bool,
    given: Mapping[str, object],
) -> list[Job]:
    """The jobs of :func:`sync_catalog`, at the position that is the newest common one now.

    :raises CatalogMissing, CatalogUnusable, NoCommonBoundary, ArchiveError, OptionRefused: as that.
    :raises TargetRefused: if a table's name leads out of ``target``.
    """
    refuse_unusable(to, target)
    uris, known = archives_of(path, tables, given)
    for name in uris:
        # The names come from outside: from any writer of the bucket.
        if not is_plain(name):
            reason = (
                "the table's name in the catalog leads out of the target; use sync_table() for it"
            )
            raise TargetRefused(f"{target.rstrip('/')}/{name}", reason)
    boundary = choose(uris, None, known, exact=False, given=given)
    return [
        Job(uri, _below(target, name, to), to, rebuild, {**given, **pinned})
        for (name, uri), pinned in zip(uris.items(), pins(boundary), strict=True)
    ]


def _below(target: str, name: str, to: str) -> str:
    """The target of the table ``name``: a directory, or a table of an Iceberg catalog."""
    if to == "iceberg":
        parts = (part if part.isidentifier() else quoted(part) for part in name.split("."))
        return ".".join((target, *parts))
    return f"{target.rstrip('/')}/{name}"
