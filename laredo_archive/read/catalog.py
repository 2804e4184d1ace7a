"""Finds the catalog of a destination, and the archives that it names."""

from typing import NamedTuple

from laredo_archive.manifest import catalog
from laredo_archive.manifest.catalog import CATALOG, DatabaseCatalog
from laredo_archive.manifest.errors import CatalogMissing
from laredo_archive.read import location
from laredo_archive.storage.access import S3Access


class FoundCatalog(NamedTuple):
    """A catalog that was found, and where."""

    #: What holds it, with ``/`` at its end: what the archives' prefixes are relative to.
    base: str
    #: The catalog's own URI.
    uri: str
    #: What it says.
    catalog: DatabaseCatalog

    def uri_of(self, prefix: str) -> str:
        """URI of the archive at ``prefix``."""
        return f"{self.base}{prefix}"


def find(uri: str, access: S3Access | None = None) -> FoundCatalog:
    """Find the catalog at a path or URI, of it or of the destination that holds it.

    :raises CatalogMissing: if there is none.
    :raises CatalogUnusable: if it is damaged or newer than this program.
    :raises DestinationError: if the location can't be read, or has an unknown scheme.
    """
    base = location.absolute(uri.removesuffix(CATALOG) or ".").rstrip("/") + "/"
    destination, _ = location.parse(base, access).split_at(0)
    where = destination.uri_of(CATALOG)
    found = destination.get(CATALOG)
    if found is None:
        raise CatalogMissing(base)
    return FoundCatalog(base, where, catalog.parse(found.data, where))
