"""Archives of tables: a base, and diffs, provable at every boundary.

:func:`open_archive` reads a table and its changes as Arrow (docs/readers.md). These names are
public; the modules below are this project's own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laredo_archive.arrow.table import (
        ArchivedTable,
        ChangesBetween,
        TableAtBoundary,
        open_archive,
    )
    from laredo_archive.errors import ArchiveError

__all__ = [
    "ArchiveError",
    "ArchivedTable",
    "ChangesBetween",
    "TableAtBoundary",
    "open_archive",
]


def __getattr__(name: str) -> Any:
    # Imported when used: all of the project imports this package, and few parts need pyarrow.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "errors" if name == "ArchiveError" else "arrow.table"
    try:
        found = getattr(import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "pyarrow":
            raise
        from laredo_archive.errors import NEEDS_PYARROW

        raise ImportError(NEEDS_PYARROW, name="pyarrow") from missing
    globals()[name] = found
    return found
