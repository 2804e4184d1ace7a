"""One destination's catalog.json, as one writer process changes it: by compare-and-swap."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import structlog

from laredo_archive.errors import CommitConflict, CommitStateUnknown, DestinationUnavailable
from laredo_archive.manifest import catalog
from laredo_archive.manifest.catalog import (
    CATALOG,
    CatalogEntry,
    DatabaseCatalog,
    GroupBoundary,
    Inherited,
)
from laredo_archive.storage.destination import Destination, ObjectVersion
from laredo_archive.write.manifest_store import ATTEMPTS, Environment

log = structlog.get_logger(__name__)


class CatalogStore:
    """The catalog of one destination, and this process's group in it. For one thread."""

    def __init__(
        self, destination: Destination, group: str, environment: Environment | None = None
    ) -> None:
        """``group``: of this process, new with every start."""
        self._destination = destination
        self._group = group
        self._environment = environment or Environment()
        self._known: DatabaseCatalog | None = None
        self._version: ObjectVersion | None = None
        self._is_read = False
        self._inherited = Inherited()
        self.uri = destination.uri_of(CATALOG)

    def enter(
        self, archives: Mapping[str, CatalogEntry], boundaries: Iterable[GroupBoundary]
    ) -> None:
        """Record this process's archives in the catalog, and leave those of others.

        :raises CatalogUnusable: if what is there isn't a catalog; it stays.
        :raises DestinationError: if it can't be read or written now.
        """
        newest = list(boundaries)
        trouble: CommitConflict | CommitStateUnknown | None = None
        for attempt in range(ATTEMPTS):
            now = self._environment.now()
            before = self._current() or DatabaseCatalog(now)
            if self._group not in before.groups:
                self._inherited = before.inherited_by(archives)
            known = self._inherited.before(archives, newest)
            after = before.with_group(self._group, archives, known)
            if after == before:
                return
            if others := before.taken_from(archives) - {self._group}:
                log.info("catalog archives taken over", catalog=self.uri, groups=sorted(others))
            try:
                self._swap(replace(after, updated_at=now, revision=before.revision + 1))
            except (CommitConflict, CommitStateUnknown) as failure:
                trouble = failure
                self._environment.back_off(attempt)
            else:
                return
        raise DestinationUnavailable(
            self.uri, f"no swap succeeded in {ATTEMPTS} attempts; the last time it {trouble}"
        ).at(self._destination.location)

    def _current(self) -> DatabaseCatalog | None:
        """As last seen; read again only where that may be out of date."""
        if not self._is_read:
            found = self._destination.get(CATALOG)
            self._known = None if found is None else catalog.parse(found.data, self.uri)
            self._version = None if found is None else found.version
            self._is_read = True
        return self._known

    def _swap(self, changed: DatabaseCatalog) -> None:
        self._is_read = False
        etag = self._version.etag if self._version else None
        self._version = self._destination.swap(CATALOG, changed.to_bytes(), etag)
        self._known, self._is_read = changed, True
