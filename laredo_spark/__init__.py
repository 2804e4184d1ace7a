"""Tables of a laredo archive in PySpark."""

from laredo_spark.source import LaredoDataSource
from laredo_spark.table import read_table, register

__all__ = ["LaredoDataSource", "read_table", "register"]
