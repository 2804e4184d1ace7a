"""One destination's manifest, as one writer or collector holds it.

The only module that swaps manifests. A swap whose outcome is unclear is settled
by reading, and reading settles only yes: as long as what was to be changed
isn't there, and no other writer has claimed the manifest, the change is rebuilt on
what was read and offered again.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import structlog

from laredo_archive.errors import (
    CommitConflict,
    CommitStateUnknown,
    DestinationError,
    DestinationUnavailable,
    Fenced,
    ManifestDamaged,
    ManifestLost,
    OfTheOriginal,
)
from laredo_archive.failpoint import reach
from laredo_archive.manifest import object_keys, parser, rules
from laredo_archive.manifest.model import Manifest
from laredo_archive.storage.destination import Destination, ObjectVersion
from laredo_archive.storage.parallel import AtOnce, in_threads
from laredo_archive.write.availability import Availabilities
from laredo_service.retry import Backoff

log = structlog.get_logger(__name__)

ATTEMPTS = 12
"""Tries of one change before the caller has to come back later."""

RETRY = Backoff(initial=0.02, maximum=2.0)

Change = Callable[[Manifest], Manifest | None]
"""A manifest made from the one given; None if that one has it already."""


@dataclass(frozen=True)
class Environment:
    """The sources of time, randomness and threads; a simulation brings its own."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    pause: Callable[[float], None] = time.sleep
    chance: random.Random = field(default_factory=random.Random)
    at_once: AtOnce = in_threads

    def back_off(self, attempt: int) -> None:
        """Wait before try number ``attempt`` + 1."""
        self.pause(RETRY.delay(attempt + 1, self.chance.random))


@dataclass
class Counts:
    """Counters of one writer since its start: conflicts, errors, availability."""

    cas_conflicts: int = 0
    destination_errors: Counter[str] = field(default_factory=Counter)
    """By the destination's location."""
    availabilities: Availabilities = field(default_factory=Availabilities)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def note(self, failure: DestinationError, stores: Sequence["ManifestStore"]) -> str | None:
        """Count ``failure`` for the destination that it is about; gives that one's location."""
        for other in failure.others:
            self.note(other, stores)
        location = failure.location or _location_of(failure.uri, stores)
        if location is not None:
            self.failed(location, failure)
        return location

    def failed(self, location: str, failure: DestinationError) -> None:
        """Count ``failure``: the destination at ``location`` is unavailable."""
        self.count_error(location)
        self.availabilities.failed(location, str(failure))

    def count_error(self, location: str) -> None:
        """Count a failed request to ``location`` for which nothing waits."""
        with self._lock:
            self.destination_errors[location] += 1


@dataclass(frozen=True)
class Claim:
    """A writer's claim, as manifests hold it: a random id per process start, and a term.

    The term is 1 + the highest seen.
    """

    writer_id: str
    term: int

    def owns(self, manifest: Manifest) -> bool:
        """True if ``manifest`` names this writer."""
        return manifest.writer_id == self.writer_id and manifest.writer_term == self.term


class ManifestStore:
    """One destination's manifest: reads, caches and swaps it (compare-and-swap)."""

    def __init__(
        self,
        destination: Destination,
        table: str,
        key_prefix: str,
        environment: Environment,
        counts: Counts,
    ) -> None:
        self.destination = destination
        self.key_prefix = key_prefix
        self.key = object_keys.manifest_key(key_prefix)
        self.uri = destination.uri_of(self.key)
        self.environment = environment
        self.counts = counts
        self._table = table
        self._manifest: Manifest | None = None
        self._version: ObjectVersion | None = None
        self._known = False

    @property
    def manifest(self) -> Manifest | None:
        """The manifest as last read; None if there was none."""
        return self._manifest

    @property
    def date(self) -> datetime | None:
        """The store's Date of the answer that showed it."""
        return self._version.date if self._version else None

    def read(self) -> Manifest | None:
        """Read the manifest from the destination.

        :raises ManifestDamaged, ManifestNewer: if it can't be used.
        :raises DestinationUnavailable: if it can't be read now.
        """
        self._known = False
        found = self.destination.get(self.key)
        if found is None:
            self._manifest, self._version = None, None
        else:
            self._manifest, self._version = self._sound(found.data), found.version
        self._known = True
        return self._manifest

    def current(self) -> Manifest | None:
        """The manifest as last seen; read again only if that may be out of date."""
        return self._manifest if self._known else self.read()

    def _sound(self, data: bytes) -> Manifest:
        manifest = parser.parse(data, self.uri, self.key_prefix)
        if manifest.by_original:
            raise OfTheOriginal(self.uri)
        if manifest.table != self._table:
            raise ManifestDamaged(
                self.uri, f"it is of table {manifest.table}, not of {self._table}"
            )
        for contradiction in rules.check(manifest):
            raise ManifestDamaged(self.uri, contradiction)
        return manifest

    def swap(self, changed: Manifest) -> Manifest:
        """Replace the version that was last seen by ``changed``.

        :raises CommitConflict, CommitStateUnknown: it has to be read again.
        """
        shown, version = self._manifest, self._version
        if shown is not None and version is not None:
            changed = rules.with_dates(changed, shown, version.date)
        changed = replace(
            changed,
            updated_at=self.environment.now(),
            revision=(shown.revision if shown else 0) + 1,
        )
        self._known = False
        etag = version.etag if version else None
        self._version = self.destination.swap(self.key, changed.to_bytes(), etag)
        self._manifest = changed
        self._known = True
        self.counts.availabilities.worked(self.destination.location)
        return changed

    def rewrite(
        self, change: Change, claim: Claim | None, *, absent: Manifest | None = None
    ) -> Manifest:
        """Apply ``change`` to the manifest by compare-and-swap, until it is in.

        With a ``claim`` the manifest must be the claimant's; without, it is changed
        whichever writer owns it. ``absent`` is the manifest to change if there is none.

        :raises Fenced: if another writer has claimed it.
        :raises ManifestLost: if it is gone, and ``absent`` not given.
        :raises DestinationUnavailable: if it isn't in, or may not be, after all tries.
        """
        trouble: CommitConflict | CommitStateUnknown | None = None
        for attempt in range(ATTEMPTS):
            manifest = self._claimed(self.current() or absent, claim)
            changed = change(manifest)
            if changed is None:
                return manifest
            try:
                reach("commit.swap")
                done = self.swap(changed)
            except (CommitConflict, CommitStateUnknown) as failure:
                trouble = failure
                self.note(failure, attempt)
                self.environment.back_off(attempt)
            else:
                reach("commit.swapped")
                return done
        raise DestinationUnavailable(
            self.uri, f"no swap succeeded in {ATTEMPTS} attempts; the last time it {trouble}"
        ).at(self.destination.location)

    def _claimed(self, manifest: Manifest | None, claim: Claim | None) -> Manifest:
        if manifest is None:
            raise ManifestLost(self.uri)
        if claim is not None and not claim.owns(manifest):
            raise Fenced(
                self.uri,
                manifest.writer_id or "unknown",
                manifest.writer_term,
                claim.writer_id,
                claim.term,
            )
        return manifest

    def note(self, failure: CommitConflict | CommitStateUnknown, attempt: int) -> None:
        """Count and log a swap that has to be settled by reading."""
        if isinstance(failure, CommitConflict):
            self.counts.cas_conflicts += 1
        else:
            self.counts.count_error(self.destination.location)
        log.warning(
            "manifest swap not confirmed",
            table=self._table,
            manifest=self.uri,
            attempt=attempt + 1,
            failure=str(failure),
        )


def _location_of(uri: str, stores: Sequence[ManifestStore]) -> str | None:
    within = [held.destination for held in stores if uri.startswith(held.destination.uri)]
    return max(within, key=lambda destination: len(destination.uri)).location if within else None
