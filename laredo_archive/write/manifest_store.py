"""One destination's manifest and catalog, as one writer or collector holds them.

The only module that swaps manifests. A swap of unclear outcome is settled by reading the manifest.
If it contains the change, the swap took effect. If not, it may yet do so: unless another writer has
claimed the manifest, the change is applied to the version that was read, and swapped again.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

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
from laredo_archive.manifest import catalog, object_keys, parser, rules, updates
from laredo_archive.manifest.catalog import (
    CATALOG,
    CatalogEntry,
    DatabaseCatalog,
    GroupBoundary,
    Inherited,
)
from laredo_archive.manifest.model import Manifest
from laredo_archive.storage.destination import Destination, ObjectVersion
from laredo_service.log import Log
from laredo_service.retry import Backoff, Outage


class Availability(NamedTuple):
    """The availability of one destination."""

    #: When it became available or unavailable, by our clock.
    since: datetime
    #: Why it is unavailable; None if it is available.
    problem: str | None


class Availabilities:
    """Each destination's availability, by its location; unknown until asked. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, Availability] = {}
        self._asked: dict[object, tuple[str, float]] = {}

    @contextmanager
    def asking(self, location: str) -> Iterator[None]:
        """Note that the block waits for the destination at ``location``."""
        request = object()
        with self._lock:
            self._asked[request] = location, time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                del self._asked[request]

    def unanswered_s(self, location: str) -> float:
        """Age of the oldest unanswered request to the destination at ``location``; 0: none."""
        with self._lock:
            since = [began for asked, began in self._asked.values() if asked == location]
        return time.monotonic() - min(since) if since else 0.0

    def of(self, location: str) -> Availability | None:
        """The availability of the destination at ``location``; None if unknown."""
        with self._lock:
            return self._found.get(location)

    def failed(self, location: str, problem: str) -> None:
        """Note that a request to ``location`` failed."""
        with self._lock:
            before = self._found.get(location)
            unavailable = before is not None and before.problem is not None
            since = before.since if before is not None and unavailable else datetime.now(UTC)
            self._found[location] = Availability(since, problem)

    def worked(self, location: str) -> None:
        """Note that the destination at ``location`` stored a manifest."""
        with self._lock:
            before = self._found.get(location)
            if before is None or before.problem is not None:
                self._found[location] = Availability(datetime.now(UTC), None)


log = Log(__name__)

T = TypeVar("T")


class AtOnce(Protocol):
    """Runs tasks at the same time: in threads, or in order in a simulation.

    So a commit waits for its slowest request, not for the sum.
    """

    def __call__(self, tasks: Sequence[Callable[[], T]], /) -> list[T]:
        """The tasks' results, in order; the first failure in that order is raised.

        All tasks have ended by then, also those after a failed one.
        """


MOST_THREADS = 16
"""A re-base places thousands of diffs, each with a connection and up to 8 MB of its own."""
SHOWN = 5
"""Failures of one kind that the log names."""


def in_threads(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Run the tasks in threads, MOST_THREADS at a time; a single task needs none."""
    if len(tasks) < 2:
        return [task() for task in tasks]
    width = min(len(tasks), MOST_THREADS)
    with ThreadPoolExecutor(width, thread_name_prefix="at-once") as threads:
        running = [threads.submit(task) for task in tasks]
    failures = [failure for done in running if (failure := done.exception()) is not None]
    if failures:
        others = {str(failure) for failure in failures[1:]} - {str(failures[0])}
        if others:
            shown = sorted(others)[:SHOWN]
            log.debug("parallel requests failed", count=len(failures), others=shown)
        if isinstance(failures[0], DestinationError):
            failures[0].others += tuple(f for f in failures[1:] if isinstance(f, DestinationError))
        raise failures[0]
    return [done.result() for done in running]


ATTEMPTS = 12
"""Tries of one change before it fails as unavailable."""

RETRY = Backoff(initial=0.02, maximum=2.0)

Change = Callable[[Manifest], Manifest | None]
"""Makes the next manifest from the current one; None if that has the change already."""

UTC_NOW = partial(datetime.now, UTC)


@dataclass(frozen=True)
class Environment:
    """The sources of time, randomness and threads; a simulation brings its own."""

    now: Callable[[], datetime] = UTC_NOW
    pause: Callable[[float], None] = time.sleep
    chance: random.Random = field(default_factory=random.Random)
    at_once: AtOnce = in_threads

    def back_off(self, attempt: int) -> None:
        """Wait after the failed try ``attempt``, counted from 0."""
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
        """Count ``failure`` for its destination; returns that destination's location, if known."""
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

    def count_conflict(self) -> None:
        """Count a swap that lost to another writer's."""
        with self._lock:
            self.cas_conflicts += 1

    def count_error(self, location: str) -> None:
        """Count a failed request to ``location``."""
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
        self.manifest: Manifest | None = None
        """The manifest as last read; None if there was none."""
        self._version: ObjectVersion | None = None
        self._known = False
        self._outage = Outage()

    def asked(self) -> AbstractContextManager[None]:
        """Note that a block waits for the destination."""
        return self.counts.availabilities.asking(self.destination.location)

    @property
    def date(self) -> datetime | None:
        """The time by the store's clock (Date) when the manifest was last read or swapped."""
        return self._version.date if self._version else None

    def read(self) -> Manifest | None:
        """Read the manifest from the destination.

        :raises ManifestDamaged, ManifestNewer: if it can't be used.
        :raises DestinationUnavailable: if it can't be read now.
        """
        self._known = False
        with self.asked():
            found = self.destination.get(self.key)
        if found is None:
            self.manifest, self._version = None, None
        else:
            self.manifest, self._version = self._sound(found.data), found.version
        self._known = True
        return self.manifest

    def current(self) -> Manifest | None:
        """The manifest as last seen; read again only if that may be out of date."""
        return self.manifest if self._known else self.read()

    def _sound(self, data: bytes) -> Manifest:
        manifest = parser.parse(data, self.uri, self.key_prefix)
        if manifest.by_original:
            raise OfTheOriginal(self.uri)
        if manifest.table != self._table:
            raise ManifestDamaged(
                self.uri, f"it belongs to table {manifest.table}, not to {self._table}"
            )
        for contradiction in rules.check(manifest):
            raise ManifestDamaged(self.uri, contradiction)
        return manifest

    def swap(self, changed: Manifest) -> Manifest:
        """Replace the version that was last seen by ``changed``.

        :raises CommitConflict, CommitStateUnknown: the manifest has to be read again.
        """
        shown, version = self.manifest, self._version
        if shown is not None and version is not None:
            changed = updates.with_dates(changed, shown, version.date)
        changed = replace(
            changed,
            updated_at=self.environment.now(),
            revision=(shown.revision if shown else 0) + 1,
        )
        self._known = False
        etag = version.etag if version else None
        with self.asked():
            self._version = self.destination.swap(self.key, changed.to_bytes(), etag)
        self.manifest = changed
        self._known = True
        self.counts.availabilities.worked(self.destination.location)
        return changed

    def rewrite(
        self, change: Change, claim: Claim | None, *, absent: Manifest | None = None
    ) -> Manifest:
        """Apply ``change`` to the manifest by compare-and-swap, until the manifest has it.

        With a ``claim`` the manifest must be the claimant's; without one, any writer may own it.
        ``absent`` is the manifest to change if there is none.

        :raises Fenced: if another writer has claimed it.
        :raises ManifestLost: if it is gone, and ``absent`` not given.
        :raises DestinationUnavailable: if no try was confirmed.
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
            self.uri,
            f"not swapped in {ATTEMPTS} attempts; it is tried again later. Last error: {trouble}",
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
            self.counts.count_conflict()
        else:
            self.counts.count_error(self.destination.location)
        level = log.warning if self._outage.is_news(type(failure).__name__) else log.debug
        level(
            "manifest swap not confirmed",
            table=self._table,
            manifest=self.uri,
            attempt=attempt + 1,
            failure=str(failure),
        )


def _location_of(uri: str, stores: Sequence[ManifestStore]) -> str | None:
    within = [held.destination for held in stores if uri.startswith(held.destination.uri)]
    return max(within, key=lambda destination: len(destination.uri)).location if within else None


class CatalogStore:
    """The catalog.json of one destination, and this process's group in it. For one thread."""

    def __init__(
        self, destination: Destination, group: str, environment: Environment | None = None
    ) -> None:
        """``group``: that of this process, new with every start."""
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

        :raises CatalogUnusable: if the object isn't a catalog; it stays.
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
            self.uri,
            f"not swapped in {ATTEMPTS} attempts; it is tried again later. Last error: {trouble}",
        ).at(self._destination.location)

    def _current(self) -> DatabaseCatalog | None:
        """The catalog as last seen; read again only if that may be out of date."""
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
