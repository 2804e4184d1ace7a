"""Errors of sync_table and its targets.

SyncError
├── TargetRefused    the target holds something else, or can't be such a target
├── TargetBusy       another sync is at work on it
├── TargetDiffers    the written table has another number of rows than the manifest
├── OlderThanTarget  the archive ends before the target's position
├── DeltaMissing     Delta Lake isn't in this Spark session
├── DeltaUnfit       its Delta Lake is for another Spark
├── IcebergMissing   Iceberg, or the target's catalog, isn't in this Spark session
├── IcebergUnfit     its Iceberg is for another Spark
└── SyncFailed       a task failed; its message
"""

from laredo_spark.errors import SparkReadError

_DELTA = (
    "PySpark 4.2 and delta-spark 4.4.0 fit together: pip install 'laredo-snapshotter[delta]' in an"
    " environment of its own, and make the session with delta.configure_spark_with_delta_pip("
    "builder), or with spark.jars.packages = io.delta:delta-spark_4.2_2.13:4.4.0"
)
_ICEBERG = (
    "There are runtimes of Iceberg for Spark 4.0 and 4.1: pip install 'laredo-snapshotter[iceberg]'"
    " (PySpark 4.1) in an environment of its own, and make the session with"
    " spark.jars.packages = org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0,"
    " spark.sql.extensions = org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    " and spark.sql.catalog.NAME = org.apache.iceberg.spark.SparkCatalog"
)


class SyncError(SparkReadError):
    """The root of sync_table's errors."""


class TargetRefused(SyncError):
    """The target holds something else, or can't be one."""

    def __init__(self, target: object, reason: str) -> None:
        super().__init__(f"{target}: {reason}")


class TargetBusy(SyncError):
    """Another sync is at work on the target."""

    def __init__(self, target: object) -> None:
        super().__init__(
            f"{target}: another sync is writing to it now. Wait for that one, or give each job"
            " targets of its own"
        )


class TargetDiffers(SyncError):
    """A rebuild wrote another number of rows than the manifest has; it was undone."""

    def __init__(self, target: object, boundary: object, expected: int, found: int) -> None:
        super().__init__(
            f"{target}: the archive's manifest has {expected} rows at {boundary}, a rebuild wrote"
            f" {found}. The rebuild was undone. Check the archive with laredo-archive verify; if it"
            " is sound, report this"
        )
        self.expected = expected
        self.found = found


class OlderThanTarget(SyncError):
    """The archive ends before the target's position, or in a history before the target's."""

    def __init__(self, target: object, at: str, where: str, head: str) -> None:
        super().__init__(
            f"{target} is at {at}, and the archive {where} ends at {head}."
            " Is this an older copy? Sync from the archive that was synced"
            " before, wait until this one has caught up, or sync with rebuild = true to go back"
        )


class DeltaMissing(SyncError):
    """Delta Lake isn't in this Spark session."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"to = delta needs Delta Lake in the Spark session ({reason}). {_DELTA}")


class DeltaUnfit(SyncError):
    """The session's Delta Lake is for another Spark."""

    def __init__(self, installed: str, requirement: str, spark: str) -> None:
        super().__init__(
            f"to = delta: delta-spark {installed} needs {requirement}, and this is Spark"
            f" {spark}. {_DELTA}"
        )


class IcebergMissing(SyncError):
    """Iceberg, or the target's catalog, isn't in this Spark session."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"to = iceberg needs Iceberg in the Spark session ({reason}). {_ICEBERG}")


class IcebergUnfit(SyncError):
    """The session's Iceberg is for another Spark."""

    def __init__(self, installed: str, made_for: str, spark: str) -> None:
        super().__init__(
            f"to = iceberg: this runtime of Iceberg {installed} is for Spark {made_for}, and this"
            f" is Spark {spark}. {_ICEBERG}"
        )


class SyncFailed(SyncError):
    """A task failed."""

    def __init__(self, target: object, reason: str) -> None:
        super().__init__(
            f"{target}: {reason}. The target is unchanged, unless its commit had already been made."
            " Run the sync again"
        )
