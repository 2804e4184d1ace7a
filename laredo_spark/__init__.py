"""Tables of a laredo archive in PySpark."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from laredo_spark.errors import importing

if TYPE_CHECKING:
    from laredo_spark.frames import count_rows, read_changes, read_table, register
    from laredo_spark.source import LaredoDataSource
    from laredo_spark.sync.sync import sync_catalog, sync_table, sync_tables
    from laredo_spark.tables import TablesAtOnce, read_catalog, read_tables

__all__ = [
    "LaredoDataSource",
    "TablesAtOnce",
    "count_rows",
    "read_catalog",
    "read_changes",
    "read_table",
    "read_tables",
    "register",
    "sync_catalog",
    "sync_table",
    "sync_tables",
]

_HOMES = {
    "LaredoDataSource": "source",
    "TablesAtOnce": "tables",
    "count_rows": "frames",
    "read_catalog": "tables",
    "read_changes": "frames",
    "read_table": "frames",
    "read_tables": "tables",
    "register": "frames",
    "sync_catalog": "sync.sync",
    "sync_table": "sync.sync",
    "sync_tables": "sync.sync",
}


def __getattr__(name: str) -> Any:
    # Imported when asked for: `laredo-spark --help` works without PySpark.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with importing():
        found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
