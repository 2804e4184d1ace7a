"""Tables of a laredo archive in PySpark."""

from laredo_spark.frames.changes import read_changes
from laredo_spark.frames.table import read_table, register
from laredo_spark.source import LaredoDataSource
from laredo_spark.sync.sync import sync_table, sync_tables, synced_table

__all__ = [
    "LaredoDataSource",
    "read_changes",
    "read_table",
    "register",
    "sync_table",
    "sync_tables",
    "synced_table",
]
