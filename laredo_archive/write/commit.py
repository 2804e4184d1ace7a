"""A commit: one artifact in every destination's manifest, one at a time (protocol, 3 and 4).

It remembers its progress, so that it can be resumed after a destination was
unavailable. The artifact stays the same until every manifest has it.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from laredo_archive.errors import (
    ArtifactDamaged,
    ArtifactMissing,
    CommitUnavailable,
    DestinationError,
    Fenced,
    OutOfOrder,
)
from laredo_archive.failpoint import reach
from laredo_archive.manifest import object_keys, rules, updates
from laredo_archive.manifest.model import Artifact, FormatEntry, Manifest
from laredo_archive.manifest.object_keys import NewNames
from laredo_archive.write.manifest_store import Claim, ManifestStore
from laredo_archive.write.part_lists import PartsLists, with_boundary
from laredo_archive.write.uploads import Content, copy_object, is_there, store_object, stored
from laredo_service.log import Log

_COUNTS_S = 60.0
"""Seconds for which a check that an object exists counts."""

# Puts a relabelled diff's objects into its new epoch's folder (commit protocol, re-base).
#
# Other programs' readers compute an object's name from its artifact's epoch, or list by
# ``epoch=N/``. So an object is in its own epoch's folder before a manifest has that epoch: by a
# link, by a copy that the store makes, or by an upload of the same bytes. The object in the former
# epoch's folder stays there, as ``former`` in the manifest, until that epoch is retired.

log = Log(__name__)


class EpochFolders:
    """The names that the objects of relabelled diffs have got, by destination."""

    def __init__(self, new_names: NewNames) -> None:
        self._new_names = new_names
        self._placed: dict[tuple[str, str], tuple[Manifest, str]] = {}
        """By destination's location and former key: the manifest for which the object was last
        seen in its new folder, and its key there."""

    def prepare(self, stores: Sequence[ManifestStore], base: Artifact) -> None:
        """Copy the diffs that ``base`` will take over, everywhere, before any manifest changes.

        :raises DestinationError: if one is unavailable; finished copies stay.
        """
        for store in stores:
            manifest = store.current()
            if manifest is not None:
                self.taken_over(store, manifest, base)
        reach("folders.prepared")

    def taken_over(self, store: ManifestStore, manifest: Manifest, base: Artifact) -> Manifest:
        """``manifest`` whose diffs that ``base`` takes over name objects in its epoch's folder.

        :raises DestinationError: if the destination is unavailable.
        """
        manifest = with_boundary(store, manifest, base)
        diffs = [diff.relabelled(base.epoch) for diff in updates.taken_over(manifest, base)]
        return rules.with_moved(manifest, self.entries(store, manifest, diffs))

    def entries(
        self, store: ManifestStore, manifest: Manifest, diffs: Iterable[Artifact]
    ) -> dict[str, FormatEntry]:
        """The objects of ``diffs`` in their epochs' folders, by the keys that they have.

        ``diffs`` have their new epoch. Objects that are in its folder already, missing, or damaged
        are left out. Each was seen, or made, after ``manifest`` was read, so it exists at that
        one's swap.

        :raises DestinationError: if the destination is unavailable.
        """
        version = _Version(store, manifest, manifest.known_keys())
        elsewhere = [
            (diff, format_id, entry)
            for diff in diffs
            for format_id, entry in diff.formats.items()
            if not object_keys.is_in_folder(entry.key, store.key_prefix, diff.epoch)
        ]
        with store.asked():
            placed = store.environment.at_once(
                [partial(self._entry, version, *one) for one in elsewhere]
            )
        return {
            entry.key: there
            for (_, _, entry), there in zip(elsewhere, placed, strict=True)
            if there is not None
        }

    def _entry(
        self, version: "_Version", diff: Artifact, format_id: str, entry: FormatEntry
    ) -> FormatEntry | None:
        store = version.store
        target = store.destination.location, entry.key
        before, key = self._placed.get(target, (None, None))
        # A collector that deletes an object changes the manifest first.
        seen = before is version.manifest or (
            key is not None and is_there(store.destination, key, entry.size_bytes)
        )
        if key is None or key in version.known or not seen:
            wanted = object_keys.artifact_key(store.key_prefix, diff, format_id)
            name = wanted if key is None else self._new_names.instead_of(wanted)
            try:
                key = self._copy(version, entry, name)
            except (ArtifactMissing, ArtifactDamaged) as failure:
                # The re-base loses nothing that isn't lost already, and may be the cure.
                log.warning("relabelled diff not copied", uri=failure.uri, reason=str(failure))
                return None
        self._placed[target] = version.manifest, key
        return replace(entry, key=key, uri=store.destination.uri_of(key))

    def _copy(self, version: "_Version", entry: FormatEntry, name: str) -> str:
        destination, environment = version.store.destination, version.store.environment
        key = copy_object(
            destination,
            entry.key,
            name,
            stored(destination, entry.key, entry.size_bytes, entry.sha256),
            avoid=version.known,
            new_names=self._new_names,
            environment=environment,
        )
        reach("folders.copied")
        return key


class _Version(NamedTuple):
    """One version of one destination's manifest."""

    store: ManifestStore
    manifest: Manifest
    known: set[str]
    """The keys that it mentions."""


Follow = Callable[[Manifest, Artifact], Manifest]
"""The manifest with the artifact in it."""


class PendingCommit:
    """One artifact that is being entered into all manifests.

    The keys of ``artifact`` are the names that its objects should get. ``contents``: its bytes, by
    format, for uploads; a base that was streamed has none, and is copied from a destination that
    has it. ``keys``: its objects' keys, by destination's location and format. ``folders``: for a
    base, which takes over diffs. ``lists``: for a merged diff, which has parts.
    """

    def __init__(
        self,
        artifact: Artifact,
        contents: Mapping[str, Content],
        keys: Mapping[tuple[str, str], str],
        follow: Follow,
        new_names: NewNames,
        *,
        folders: EpochFolders | None = None,
        lists: PartsLists | None = None,
    ) -> None:
        self.artifact = artifact
        self._lists = lists
        self.merges = lists is not None
        """True if the artifact replaces the diffs that it was merged from."""
        self._folders = folders
        self._contents = contents
        self._keys = dict(keys)
        self._follow = follow
        self._new_names = new_names
        self._found: dict[tuple[str, str], tuple[Manifest | None, str, float]] = {}
        """The version of a manifest for which an object was found there, and its key."""
        self.begun = False
        """True if a manifest has the artifact; then the others must get it too.

        A swap of unclear outcome doesn't count: the objects are deleted only after a later version
        of that manifest has retired them, and such a version makes that swap fail.
        """
        self.may_be_named = False
        """True if a manifest may have the artifact, or get it yet by a swap of unclear outcome."""

    def finish(self, stores: Sequence[ManifestStore], claim: Claim) -> None:
        """Upload the artifact to every destination, and enter it into every manifest.

        :raises Fenced: if another writer has taken one over.
        :raises ArtifactMissing: if its bytes are gone everywhere.
        :raises ArtifactDamaged: if they, or a list of parts, aren't what they should be.
        :raises DestinationError: if one is unavailable.
        """
        self.upload_missing(stores)
        self.commit(stores, claim)

    def upload_missing(
        self, stores: Sequence[ManifestStore], seen: Sequence[Manifest | None] | None = None
    ) -> None:
        """Upload the objects that a destination lacks, and check that all exist.

        All destinations at the same time; the check counts for the manifests as they are now.
        ``seen``: the stores' manifests, without which this must have its turn.
        """
        self._found.clear()
        at_once = stores[0].environment.at_once
        manifests = [store.current() for store in stores] if seen is None else seen
        lacking = at_once(
            [
                partial(self._provide, store, stores, manifest)
                for store, manifest in zip(stores, manifests, strict=True)
            ]
        )
        if self._folders is not None:
            waiting = [store for store, lacks in zip(stores, lacking, strict=True) if lacks]
            self._folders.prepare(waiting, self.artifact)
        reach("commit.uploaded")

    def commit(self, stores: Sequence[ManifestStore], claim: Claim) -> None:
        """Add the artifact to every manifest, one after the other."""
        self.may_be_named = True
        for store in stores:
            store.rewrite(partial(self._offered, store, stores), claim)
            self.begun = True

    def _is_in(self, manifest: Manifest) -> bool:
        return any(self.artifact.same_as(known) for known in reversed(manifest.artifacts))

    def _provide(
        self, store: ManifestStore, stores: Sequence[ManifestStore], manifest: Manifest | None
    ) -> bool:
        """Upload and check the objects if the manifest lacks the artifact; True if it does."""
        if manifest is None or self._is_in(manifest):
            return False
        store.environment.at_once(
            [
                partial(self._provide_object, store, stores, manifest, format_id)
                for format_id in self.artifact.formats
            ]
        )
        return True

    def _provide_object(
        self,
        store: ManifestStore,
        stores: Sequence[ManifestStore],
        manifest: Manifest,
        format_id: str,
    ) -> None:
        target = store.destination.location, format_id
        if target not in self._keys:
            self._upload_one(store, stores, manifest, format_id)
        key = self._keys[target]
        if self._asked_for(store, format_id):
            self._found[target] = manifest, key, time.monotonic()

    def _offered(
        self, store: ManifestStore, stores: Sequence[ManifestStore], manifest: Manifest
    ) -> Manifest | None:
        if self._is_in(manifest):
            return None
        retired = manifest.retired_keys()
        for format_id in self.artifact.formats:
            key = self._keys[store.destination.location, format_id]
            if key in retired or not self._is_there(store, manifest, format_id):
                self._upload_one(store, stores, manifest, format_id, under_new_name=True)
        if self._folders is not None:
            manifest = self._folders.taken_over(store, manifest, self.artifact)
        artifact = self._as_named_by(store)
        if self._lists is not None:
            merged = self._lists.with_parts(store, manifest, artifact)
            return None if merged is None else self._follow(manifest, merged)
        return self._follow(manifest, artifact)

    def _is_there(self, store: ManifestStore, manifest: Manifest, format_id: str) -> bool:
        # A check counts for one swap of the manifest version that it was made with: our programs
        # change the manifest before they delete an object. Others may delete one at any time, so
        # a check counts for a minute.
        target = store.destination.location, format_id
        seen, at, when = self._found.pop(target, (None, "", 0.0))
        if seen is manifest and at == self._keys[target] and time.monotonic() < when + _COUNTS_S:
            return True
        return self._asked_for(store, format_id)

    def _asked_for(self, store: ManifestStore, format_id: str) -> bool:
        """True if the destination has the object now."""
        key, entry = self._keys[store.destination.location, format_id], self.artifact.formats
        with store.asked():
            return is_there(store.destination, key, entry[format_id].size_bytes)

    def _as_named_by(self, store: ManifestStore) -> Artifact:
        formats: dict[str, FormatEntry] = {}
        for format_id, entry in self.artifact.formats.items():
            key = self._keys[store.destination.location, format_id]
            formats[format_id] = replace(entry, key=key, uri=store.destination.uri_of(key))
        return replace(self.artifact, formats=formats)

    def _upload_one(
        self,
        store: ManifestStore,
        stores: Sequence[ManifestStore],
        manifest: Manifest,
        format_id: str,
        *,
        under_new_name: bool = False,
    ) -> None:
        key = self.artifact.formats[format_id].key
        avoid = manifest.known_keys()
        content = self._content(format_id, stores)
        with store.asked():
            self._keys[store.destination.location, format_id] = store_object(
                store.destination,
                self._new_names.instead_of(key) if under_new_name else key,
                content,
                avoid=avoid,
                new_names=self._new_names,
                environment=store.environment,
            )

    def _content(self, format_id: str, stores: Sequence[ManifestStore]) -> Content:
        if format_id in self._contents:
            return self._contents[format_id]
        entry = self.artifact.formats[format_id]
        for store in stores:
            key = self._keys.get((store.destination.location, format_id))
            if key is not None and is_there(store.destination, key, entry.size_bytes):
                return stored(store.destination, key, entry.size_bytes, entry.sha256)
        raise ArtifactMissing(
            stores[0].destination.uri_of(entry.key),
            "it was uploaded, and something deleted it before the commit; the base has to be"
            " made again",
        )


class CommitsInTurn:
    """Commits one after the other; one may be unfinished, and wait for a destination."""

    def __init__(self, stores: Sequence[ManifestStore], claim: Claim, table: str) -> None:
        self._stores = tuple(stores)
        self._claim = claim
        self._table = table
        self._turn = threading.RLock()
        self._fenced: Fenced | None = None
        self._pending: PendingCommit | None = None
        self._spool: ExitStack | None = None

    @property
    def unfinished(self) -> bool:
        """True if a commit waits for a destination."""
        return self._pending is not None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the lock on commits for the block, which calls finish() before anything else.

        :raises Fenced: if another writer has taken over, now or earlier.
        :raises CommitUnavailable: if a destination is unavailable.
        """
        with self._turn:
            if self._fenced is not None:
                raise self._fenced
            try:
                with self.reported():
                    yield
            except Fenced as fenced:
                self._fenced = fenced
                self._drop()
                log.error(
                    "archive taken over by another writer", table=self._table, reason=str(fenced)
                )
                raise

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Report a destination that fails in the block.

        :raises CommitUnavailable: if a destination is unavailable.
        """
        try:
            yield
        except DestinationError as failure:
            location = self._stores[0].counts.note(failure, self._stores)
            log.debug("commit delayed", table=self._table, reason=str(failure))
            raise CommitUnavailable(self._table, failure.uri, failure, location) from failure

    def begin(self, commit: PendingCommit, spool: ExitStack | None = None) -> None:
        """Have ``commit`` finished next, and ``spool`` closed then."""
        self._pending, self._spool = commit, spool

    def finish(self) -> PendingCommit | None:
        """Enter the unfinished commit, if there is one, into every manifest; return it.

        It is given up if it can't be finished as its bytes are gone or damaged, or the manifest
        has moved on, and no manifest needs it: else no other commit would ever follow.

        :raises OutOfOrder: if the swap of a commit that was given up took effect after all; the
            archive must be opened again.
        """
        pending = self._pending
        if pending is None:
            return None
        try:
            pending.finish(self._stores, self._claim)
        except (ArtifactMissing, ArtifactDamaged, OutOfOrder) as failure:
            damaged = isinstance(failure, ArtifactDamaged)
            if not (pending.may_be_named if damaged else pending.begun):
                self._drop()
            raise
        reach("commit.done")
        self._drop()
        return pending

    def close(self) -> None:
        """Delete temporary files."""
        with self._turn:
            self._drop()

    def _drop(self) -> None:
        self._pending = None
        if self._spool is not None:
            self._spool.close()
            self._spool = None
