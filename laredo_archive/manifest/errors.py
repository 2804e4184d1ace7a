"""Errors of the catalog of several archives.

ArchiveError
├── CatalogUnusable           catalog.json can't be used as it is
└── CatalogMissing            there is none
"""

from laredo_archive.errors import ArchiveError


class CatalogUnusable(ArchiveError):
    """The catalog at ``where`` is damaged, or of a later version of this program."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(
            f"{where}: the catalog can't be used: {reason}. It lists archives and holds no rows:"
            " read these by themselves, or delete it, and the writers make it again"
        )
        self.where = where


class CatalogMissing(ArchiveError):
    """There is no catalog at ``where``."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where}: no catalog there (no catalog.json). A laredo-snapshotter with several"
            " tables keeps one in each of its destinations; give the destination, without a table's"
            " directory"
        )
        self.where = where
