"""``read_changes``: the changes between two boundaries of an archive, as a DataFrame."""

from collections.abc import Mapping
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from laredo_spark import options
from laredo_spark.changes.changes_read import ChangesRead
from laredo_spark.cores import cores
from laredo_spark.frames import registration
from laredo_spark.frames.table import PUSH_FILTERS
from laredo_spark.options import ReadMode


def read_changes(
    spark: SparkSession,
    path: str,
    after: str | datetime | None = None,
    until: str | datetime | None = None,
    *,
    exact: bool = False,
    on_gap: str = "fail",
    **given: object,
) -> DataFrame:
    """The changes after one boundary up to another: action, position, key, old, new.

    A diff holds the net change of each key in its window, and ``position`` is the window's end;
    so a key comes once at most for each position, but for a TRUNCATE, which comes before the
    rest of its position. Without ``after``: from the archive's first boundary on; without
    ``until``: up to its head. At a gap between diffs (retention, another history, other
    columns), ``on_gap`` decides: "fail", or "snapshot": a TRUNCATE, and the next
    base's rows with action SNAPSHOT; then, without ``after``, the first base's rows come first.
    ``given``: the other options of :mod:`laredo_spark.options`; :mod:`laredo_spark.changes.shape`
    says which columns there are.

    :raises ArchiveError: if there is no such archive, or no such boundary.
    :raises ChangesGone: at a gap.
    :raises OptionRefused: if an option can't be used.
    """
    asked = options.as_options(
        {
            "path": path,
            "mode": ReadMode.CHANGES.value,
            "after": after,
            "until": until,
            "exact": exact,
            "on_gap": on_gap,
            "push_filters": spark.conf.get(PUSH_FILTERS, "false"),
            "partitions_at_least": cores(spark),
            **given,
        }
    )
    found = ChangesRead.of(options.parse(asked))
    registration.register(spark)
    name = registration.named(spark, _name(registration.directory_of(found.archive), asked))
    return spark.read.format(name).options(**asked).load()


def _name(uri: str, asked: Mapping[str, str]) -> str:
    """Name of the scan in ``explain``."""
    ends = [f"{end} {asked[end]}" for end in ("after", "until", "key") if end in asked]
    return " ".join([f"laredo changes of {uri}", *ends])
