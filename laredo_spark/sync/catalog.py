"""``sync_catalog``: every table of a catalog into a target of its own, all at one position.

    sync_catalog(spark, "s3://bucket/laredo/", to="delta", target="/data")   # /data/public.users

The position is chosen before the first table is synced. Each target says in itself at which it is,
so that a job that was killed between two tables leaves some of them behind, and the next
one brings all to one position again.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from laredo_archive.storage.destination import is_plain
from laredo_spark.frames.catalog import archives_of
from laredo_spark.frames.tables import choose, pins
from laredo_spark.sync.errors import TargetRefused
from laredo_spark.sync.lakehouse.merging import quoted
from laredo_spark.sync.sync import Done, Job, refuse_unusable, sync_tables


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

    Of Iceberg it is ``target``.NAME: ``lake.public.users`` with ``target`` = ``lake``.
    ``tables``: these names only. One that fails doesn't stop the others. The rest is as in
    :func:`sync_table`.

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
        # Whoever writes to the bucket names the tables.
        if not is_plain(name):
            reason = "the catalog's name of this table leads elsewhere; sync it by sync_table()"
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
