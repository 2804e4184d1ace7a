"""The collector: deletes objects that no manifest names (docs/commit-protocol.md, Retention).

Two steps, far apart. An object that neither ``artifacts`` nor ``retired`` names,
older than the cut-off, is entered into ``retired``. An entry that has been there
for longer than the grace period is deleted. Both steps go by the store's Date.

Only objects whose names have the form that writers give them (``object_keys.is_own``) are ever
entered or deleted, whatever a manifest names: all other objects belong to other programs.

A deletion is announced in the manifest before it is sent: the entry gets this
run's token. Another run leaves it alone for a whole grace period, so that no
late or repeated request deletes a name that has been given out again.
"""

import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from laredo_archive.errors import (
    ArtifactDamaged,
    ArtifactMissing,
    CommitStateUnknown,
    DestinationUnavailable,
    NotAFile,
    NotCollectable,
)
from laredo_archive.failpoint import reach
from laredo_archive.manifest import merged, object_keys
from laredo_archive.manifest.model import FormatEntry, Manifest, Retired
from laredo_archive.manifest.object_keys import Span
from laredo_archive.read.objects import UNWATCHED, ReadProgress
from laredo_archive.storage.destination import Destination, ObjectInfo
from laredo_archive.write.manifest_store import Counts, Environment, ManifestStore
from laredo_model.position import Position
from laredo_service.log import Log

# Objects that files of parts name: they are kept while such a file may be read.
#
# A manifest names a file of parts, and only the file names the diffs in it: they may be millions.
# So the collector goes by the positions in the file's own name. An object whose name has positions
# within them counts as named by the file, and stays. Once a retired file's grace period is over,
# the collector reads the file. The objects that it names take its place in ``retired``, and are
# deleted like all others there.

log = Log(__name__)


class CoveredPositions:
    """The positions that some files of parts cover."""

    def __init__(self, file_keys: Iterable[str], key_prefix: str) -> None:
        self._key_prefix = key_prefix
        spans = (object_keys.span_of(key, key_prefix) for key in file_keys)
        # Of those that begin at one position the widest first: it contains the others.
        files = sorted(
            (span for span in spans if span is not None and span.lists_parts),
            key=lambda span: (span.start, -span.end),
        )
        self._outermost: list[Span] = []
        for span in files:
            last = self._outermost[-1] if self._outermost else None
            if last is None or not last.covers(span):
                self._outermost.append(span)
        self._starts: list[Position] = [span.start for span in self._outermost]

    def has(self, key: str) -> bool:
        """True if the positions in the object's name are within those of one of the files.

        A file may name objects of earlier epochs, as a re-base gives diffs to a later one.
        """
        span = object_keys.span_of(key, self._key_prefix)
        if span is None:
            return False
        before = self._outermost[: bisect_right(self._starts, span.start)]
        return any(file.covers(span) for file in reversed(before))


def file_keys_of(manifest: Manifest) -> list[str]:
    """The keys of all files of parts that the manifest's diffs name."""
    return [key for artifact in manifest.artifacts for key in artifact.lists_of_parts()]


def is_file(key: str, key_prefix: str) -> bool:
    """True if the name is one of a file of parts."""
    span = object_keys.span_of(key, key_prefix)
    return span is not None and span.lists_parts


def named_in(destination: Destination, manifest: Manifest, key: str, key_prefix: str) -> list[str]:
    """The objects that only the retired file ``key`` names, and that may be deleted.

    A file that is gone or damaged names none: its objects are then found by listing.
    """
    found = destination.head(key)
    if found is None:
        return []
    entry = FormatEntry(destination.uri_of(key), found.size_bytes, key)
    try:
        diffs = merged.read(destination, key, entry, key_prefix)
    except (ArtifactMissing, ArtifactDamaged) as failure:
        log.warning("retired parts file not read", uri=failure.uri, reason=str(failure))
        return []
    kept, within = manifest.kept_keys(), CoveredPositions([key], key_prefix)
    needed = CoveredPositions(file_keys_of(manifest), key_prefix)
    named = dict.fromkeys(entry.key for diff in diffs for entry in diff.objects())
    return [one for one in named if one not in kept and within.has(one) and not needed.has(one)]


DAY = timedelta(days=1)
LISTED_AT_ONCE = 1000
NAMED_AT_ONCE = 2000
"""Objects that files of parts add to ``retired`` before some are deleted; a last file may exceed
it."""
NO_DIRECTORY = (
    "this archive has no directory of its own in its destination (its key_prefix is empty, or"
    " doesn't end in /), so its garbage can't be distinguished from other archives'. Copy it"
    " below a name of its own (laredo-archive copy FROM TO), and let the writer continue there"
)


@dataclass(frozen=True)
class Policy:
    """The ages at which objects are retired and deleted, by the store's clock."""

    #: Minimum age of an orphan; longer than the longest commit.
    cut_off: timedelta = DAY
    #: Time for which a retired object stays; longer than the longest read.
    grace: timedelta = DAY


@dataclass
class Collected:
    """Report of one run over one archive in one destination; a dry run reports its intent."""

    uri: str
    dry_run: bool
    orphans: list[ObjectInfo] = field(default_factory=list)
    """Entered into ``retired``."""
    deleted: list[str] = field(default_factory=list)
    waiting: int = 0
    """Retired objects that aren't deleted yet."""
    unfinished: int = 0
    """Unfinished uploads that were dropped."""


def collect(
    destination: Destination,
    table: str,
    *,
    key_prefix: str,
    policy: Policy | None = None,
    dry_run: bool = False,
    environment: Environment | None = None,
    progress: ReadProgress = UNWATCHED,
    on_deleted: Callable[[str], None] | None = None,
) -> Collected:
    """Collect the garbage of one table's archive in one destination; its writer may be running.

    ``on_deleted`` is called with each deleted key, also by a run that fails later.

    :raises NotCollectable: if there is no manifest, or one without artifacts, or the
        archive has no directory of its own (``key_prefix`` is empty, or doesn't end in ``/``).
    :raises ManifestDamaged, ManifestNewer: if it can't be read.
    :raises DestinationUnavailable: if listing or deleting fails; finished deletions are entered.
    """
    store = ManifestStore(destination, table, key_prefix, environment or Environment(), Counts())
    if not key_prefix.endswith("/"):
        raise NotCollectable(store.uri, NO_DIRECTORY)
    run = _CollectorRun(store, key_prefix, policy or Policy(), progress, dry_run=dry_run)
    run.on_deleted = on_deleted
    return run.run()


class _CollectorRun:
    def __init__(
        self,
        store: ManifestStore,
        prefix: str,
        policy: Policy,
        progress: ReadProgress,
        *,
        dry_run: bool,
    ) -> None:
        self._store = store
        self._destination = store.destination
        self._prefix = prefix
        self._policy = policy
        self._progress = progress
        self._token = secrets.token_hex(8)
        self._result = Collected(store.destination.uri_of(store.key), dry_run)
        self._sizes: dict[str, int] = {}
        """Sizes of all objects that were listed."""
        self._unnamed: list[ObjectInfo] = []
        """The listed objects among which orphans are sought."""
        self._asked: set[str] = set()
        """Objects whose deletion was asked for, with or without an answer."""
        self._opened: dict[str, list[str]] = {}
        """Objects that only an expired file of parts names, by the file's key."""
        self.on_deleted: Callable[[str], None] | None = None

    def run(self) -> Collected:
        manifest = self._store.read()
        if manifest is None or not manifest.artifacts:
            reason = "there is no manifest" if manifest is None else "it names no artifacts"
            raise NotCollectable(self._store.uri, reason)
        listed = self._list()
        self._sizes = {info.key: info.size_bytes for info in listed}
        self._unnamed = listed
        if self._result.dry_run:
            self._planned(manifest)
        else:
            reach("garbage.listed")
            while self._collect_once():
                reach("garbage.opened")
                # Only objects that files of parts named can have become due.
                self._unnamed = []
            self._result.unfinished = self._destination.collect_unfinished(
                self._prefix,
                self._policy.cut_off,
                partial(object_keys.is_begun, key_prefix=self._prefix),
            )
        self._report()
        return self._result

    def _collect_once(self) -> bool:
        """Enter orphans, and delete what is due; True if files of parts have made more due."""
        before = self._store.current()
        marked = self._store.rewrite(self._marked, None)
        reach("garbage.marked")
        entered = marked.retired_keys() - (before.retired_keys() if before else set())
        entered -= {key for named in self._opened.values() for key in named}
        self._result.orphans += [found for found in self._unnamed if found.key in entered]
        self._result.waiting = len(marked.retired)
        announced = [entry.key for entry in marked.retired if entry.deleting == self._token]
        self._delete([key for key in announced if key not in self._asked])
        self._asked.update(announced)
        return bool(self._opened)

    def _list(self) -> list[ObjectInfo]:
        listed: list[ObjectInfo] = []
        for info in self._destination.list(object_keys.objects_prefix(self._prefix)):
            if len(listed) % LISTED_AT_ONCE == 0:
                self._progress.step(f"listing: {len(listed):,} objects")
            if self._is_own(info.key):
                listed.append(info)
        return listed

    def _is_own(self, key: str) -> bool:
        return object_keys.is_own(key, self._prefix)

    def _planned(self, manifest: Manifest) -> None:
        date = self._date()
        self._result.orphans = self._orphans(manifest, date)
        due = dict.fromkeys(e.key for e in manifest.retired if self._expired(e, date))
        files = [key for key in due if is_file(key, self._prefix)]
        while files:
            named = self._named_in(files.pop(), manifest)
            files += [key for key in named if key not in due and is_file(key, self._prefix)]
            due |= dict.fromkeys(named)
        self._result.deleted = list(due)
        self._result.waiting = sum(not self._is_over(e, date) for e in manifest.retired)

    def _marked(self, manifest: Manifest) -> Manifest | None:
        """The manifest with orphans entered and deletions announced; the swap dates entries."""
        self._opened = {}
        if not manifest.artifacts:
            raise NotCollectable(self._store.uri, "it names no artifacts")
        date = self._date()
        orphans = self._orphans(manifest, date)
        undated = any(entry.at is None for entry in manifest.retired)
        due = any(self._is_over(entry, date) for entry in manifest.retired)
        if not (orphans or undated or due):
            return None
        named = self._open_files(manifest, date)
        retired = [
            replace(entry, at=date, deleting=self._token)
            if self._expired(entry, date) and not self._waits(entry)
            else entry
            for entry in manifest.retired
            if not self._is_let_go(entry, date)
        ]
        known = {entry.key for entry in retired}
        retired += [entry for entry in named if entry.key not in known]
        retired += [Retired(orphan.key) for orphan in orphans]
        return replace(manifest, retired=tuple(retired))

    def _open_files(self, manifest: Manifest, date: datetime) -> list[Retired]:
        """Entries of the objects in expired files of parts, retired for as long as the files.

        The newest files first, and no more than a manifest has room for.
        """
        named: list[Retired] = []
        for entry in reversed(manifest.retired):
            if is_file(entry.key, self._prefix) and self._expired(entry, date):
                self._opened[entry.key] = self._named_in(entry.key, manifest)
                named += [Retired(key, entry.at) for key in self._opened[entry.key]]
                if len(named) >= NAMED_AT_ONCE:
                    break
        return named

    def _waits(self, entry: Retired) -> bool:
        """True if it is a file of parts that isn't opened yet."""
        return is_file(entry.key, self._prefix) and entry.key not in self._opened

    def _named_in(self, key: str, manifest: Manifest) -> list[str]:
        self._progress.step(f"reading {key}")
        return named_in(self._destination, manifest, key, self._prefix)

    def _date(self) -> datetime:
        date = self._store.date
        assert date is not None, "the manifest was read"
        return date

    def _orphans(self, manifest: Manifest, date: datetime) -> list[ObjectInfo]:
        known = manifest.known_keys() | {self._store.key}
        covered = CoveredPositions(
            [*file_keys_of(manifest), *manifest.retired_keys()], self._prefix
        )
        limit = date - self._policy.cut_off
        return [
            found
            for found in self._unnamed
            if found.key not in known and found.modified < limit and not covered.has(found.key)
        ]

    def _is_over(self, entry: Retired, date: datetime) -> bool:
        """True if its grace period is over."""
        return entry.at is not None and date - entry.at > self._policy.grace

    def _expired(self, entry: Retired, date: datetime) -> bool:
        """True if its object is to be deleted."""
        return self._is_own(entry.key) and self._is_over(entry, date)

    def _is_let_go(self, entry: Retired, date: datetime) -> bool:
        """True if the entry leaves the list, but its object stays, as no writer has named it."""
        return not self._is_own(entry.key) and self._is_over(entry, date)

    def _delete(self, keys: Iterable[str]) -> None:
        going, before = list(keys), len(self._result.deleted)
        self._progress.expect(sum(self._sizes.get(key, 0) for key in going))
        try:
            for number, key in enumerate(going, 1):
                self._progress.step(f"deleting {number:,} of {len(going):,}")
                self._delete_one(key)
                self._progress.advance(self._sizes.get(key, 0))
        finally:
            if self._result.deleted:
                reach("garbage.deleted")
                self._store.rewrite(self._without_deleted, None)
                reach("garbage.dropped")
        self._result.waiting -= len(self._result.deleted) - before

    def _delete_one(self, key: str) -> None:
        try:
            self._destination.delete(key)
        except CommitStateUnknown as unclear:
            # It keeps its entry, so its name isn't used again, for another grace period.
            log.warning("deletion not confirmed", uri=unclear.uri, reason=str(unclear))
            return
        except NotAFile as other:
            log.warning("deletion skipped: not an object", uri=other.uri, reason=str(other))
            return
        except DestinationUnavailable as failure:
            log.warning("deletion failed", uri=failure.uri, reason=str(failure))
            raise
        log.info("object deleted", uri=self._destination.uri_of(key))
        self._result.deleted.append(key)
        if self.on_deleted is not None:
            self.on_deleted(key)

    def _without_deleted(self, manifest: Manifest) -> Manifest | None:
        gone = set(self._result.deleted)
        left = tuple(
            entry
            for entry in manifest.retired
            if not (entry.key in gone and entry.deleting == self._token)
        )
        return None if left == manifest.retired else replace(manifest, retired=left)

    def _report(self) -> None:
        log.info(
            "garbage collected" if not self._result.dry_run else "garbage listed",
            manifest=self._store.uri,
            orphans=len(self._result.orphans),
            deleted=len(self._result.deleted),
            waiting=self._result.waiting,
            unfinished=self._result.unfinished,
        )
