"""Tables of a laredo archive in PySpark."""

from laredo_spark.changes import read_changes
from laredo_spark.source import LaredoDataSource
from laredo_spark.sync import sync_table, sync_tables, synced_table
from laredo_spark.table import read_table, register

__all__ = [
    "LaredoDataSource",
    "read_changes",
    "read_table",
    "register",
    "sync_table",
    "sync_tables",
    "synced_table",
]
