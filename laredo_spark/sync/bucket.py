"""A Parquet target in a bucket: folders of versions, and a pointer that is swapped.

    TARGET/current.json                     the one commit point: replaced by If-Match
    TARGET/versions/00000007-<random>/      never changed once the pointer names it

The pointer names the folder that readers see, its boundary and the key range of each of its files,
and the folders before it. A sync that is killed leaves a folder that no pointer names; the numbers
of two syncs at once are equal, and only one of them can replace the pointer that both have read.
So a folder with a number that the pointer has reached, and which it doesn't name, is nobody's.
"""

import json
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog

from laredo_archive.errors import CommitConflict, CommitStateUnknown, DestinationError
from laredo_archive.failpoint import reach
from laredo_archive.manifest.object_keys import NewNames
from laredo_archive.storage.destination import StoredObject
from laredo_archive.write import uploads
from laredo_archive.write.manifest_store import Environment
from laredo_model.files import moment
from laredo_spark.options import ReadOptions
from laredo_spark.sync.errors import TargetBusy, TargetMissing, TargetRefused
from laredo_spark.sync.folder import BucketFolder, Folder, destination_at
from laredo_spark.sync.state import StateUnreadable, SyncedFile, SyncState

POINTER = "current.json"
_OURS = re.compile(r"(versions/(\d{8,})-[0-9a-f]{16}/)part-[0-9a-f]{24}[-0-9a-f]*\.parquet")

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Pointer:
    """What readers are shown."""

    #: The folder's key, with ``/`` at the end.
    folder: str
    #: Its boundary and files.
    state: SyncState
    #: The folders before it, and when each was followed, by the store's clock.
    former: tuple[tuple[str, datetime], ...] = ()

    def to_json(self) -> bytes:
        """The text that the bucket keeps."""
        former = [{"folder": folder, "until": until.isoformat()} for folder, until in self.former]
        state = json.loads(self.state.to_json())
        described = {"folder": self.folder, "state": state, "former": former}
        return json.dumps(described, indent=1).encode() + b"\n"

    @classmethod
    def parse(cls, text: bytes) -> "Pointer":
        """Parse :meth:`to_json`'s text.

        :raises StateUnreadable: if it isn't one that this program knows.
        """
        try:
            described = json.loads(text)
            former = tuple(
                (each["folder"], moment.parse(each["until"])) for each in described["former"]
            )
            folder, state = described["folder"], json.dumps(described["state"])
        except (ValueError, TypeError, KeyError) as wrong:
            raise StateUnreadable(f"it can't be read: {wrong}") from wrong
        if _OURS.fullmatch(f"{folder}part-{'0' * 24}.parquet") is None:
            raise StateUnreadable(f"it names {folder!r}, which is no version's folder")
        return cls(folder, SyncState.parse(state), former)


class SyncBucket:
    """One Parquet target below a prefix of a bucket."""

    def __init__(self, target: str, asked: ReadOptions) -> None:
        """``asked``: whose rights, region and endpoint are used.

        :raises DestinationError: if it isn't a location.
        """
        self.uri = target if target.endswith("/") else f"{target}/"
        self._asked = asked
        self._store = destination_at(self.uri, asked)
        self._locked = False
        # The pointer that a locked target's sync goes by, and replaces.
        self._seen: StoredObject | None = None

    def __str__(self) -> str:
        return self.uri

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nothing is locked: a sync that isn't the first to commit fails there.

        :raises TargetRefused: if something else is below the prefix.
        """
        self._seen, self._locked = self._store.get(POINTER), True
        try:
            if self._seen is None:
                self._refuse_others()
            yield
        finally:
            self._locked = False

    def _refuse_others(self) -> None:
        for info in self._store.list(""):
            if _OURS.fullmatch(info.key) is None:
                reason = f"there is something else in it ({info.key}); give a prefix of its own"
                raise TargetRefused(self.uri, reason)

    def state(self) -> SyncState | None:
        """The pointer's."""
        found = self._found()
        return None if found is None else self._parsed(found).state

    def shown(self) -> BucketFolder:
        """The folder that the pointer names."""
        return self._folder(self._pointer().folder)

    def is_whole(self, state: SyncState) -> bool:
        """By one listing of the folder."""
        folder = self._pointer().folder
        there = {info.key: info.size_bytes for info in self._store.list(folder)}
        return all(there.get(f"{folder}{file.name}") == file.size_bytes for file in state.files)

    @contextmanager
    def staging(self) -> Iterator[BucketFolder]:
        """The folder that is to be the next version."""
        found = self._found()
        number = 1 if found is None else self._parsed(found).state.version + 1
        key = f"versions/{number:08d}-{secrets.token_hex(8)}/"
        try:
            yield self._folder(key)
        except CommitStateUnknown:
            # The pointer may name it yet.
            raise
        except BaseException:
            self._drop(key)
            raise

    def commit(self, state: SyncState, staged: Folder, kept: Sequence[SyncedFile]) -> None:
        """Copy the kept files in the store, then swap the pointer that was there at first."""
        assert isinstance(staged, BucketFolder)
        key = staged.uri.removeprefix(self.uri)
        before = self._found()
        former: tuple[tuple[str, datetime], ...] = ()
        if before is not None:
            held = self._parsed(before)
            former = (*held.former, (held.folder, before.version.date))
            state = self._copied(state, kept, held.folder, key)
        reach("sync.linked")
        self._swap(Pointer(key, state, former))
        reach("sync.committed")

    def recorded(self, state: SyncState) -> None:
        """Swap the pointer for one to the same folder."""
        pointer = self._pointer()
        state = replace(state, version=pointer.state.version)
        self._swap(replace(pointer, state=state))

    def remove_old(self, keep_s: float) -> None:
        """By the store's clock; what other syncs at work may need stays."""
        found = self._found()
        if found is None:
            return
        pointer, now = self._parsed(found), found.version.date
        stay = {folder for folder, until in pointer.former if now - until < timedelta(0, keep_s)}
        for info in self._store.list("versions/"):
            ours = _OURS.fullmatch(info.key)
            if ours is None or int(ours[2]) > pointer.state.version:
                continue
            if ours[1] not in stay and ours[1] != pointer.folder:
                self._store.delete(info.key)
        if len(stay) < len(pointer.former):
            former = tuple(each for each in pointer.former if each[0] in stay)
            # A sync that has committed meanwhile leaves these to the next one.
            with suppress(TargetBusy):
                self._swap(replace(pointer, former=former))

    def _copied(
        self, state: SyncState, kept: Sequence[SyncedFile], source: str, key: str
    ) -> SyncState:
        """Copy the kept files between two folders; the state with the names that they get there."""
        names = {}
        new_names = NewNames(secrets.token_hex(4))
        for file in kept:
            content = uploads.stored(self._store, f"{source}{file.name}", file.size_bytes, None)
            made = uploads.copy_object(
                self._store,
                f"{source}{file.name}",
                f"{key}{file.name}",
                content,
                avoid=(),
                new_names=new_names,
                environment=Environment(),
            )
            names[file.name] = made.removeprefix(key)
        files = tuple(replace(file, name=names.get(file.name, file.name)) for file in state.files)
        return replace(state, files=files)

    def _swap(self, pointer: Pointer) -> None:
        """:raises TargetBusy: if another sync has swapped it."""
        before, data = self._seen, pointer.to_json()
        try:
            version = self._store.swap(POINTER, data, _etag(before))
        except (CommitConflict, CommitStateUnknown) as unclear:
            found = self._store.get(POINTER)
            if found is None or found.data != data:
                if isinstance(unclear, CommitStateUnknown) and _etag(found) == _etag(before):
                    raise
                raise TargetBusy(self.uri) from unclear
            version = found.version
        self._seen = StoredObject(data, version)

    def _found(self) -> StoredObject | None:
        return self._seen if self._locked else self._store.get(POINTER)

    def _pointer(self) -> Pointer:
        found = self._found()
        if found is None:
            raise TargetMissing(self.uri)
        return self._parsed(found)

    def _parsed(self, found: StoredObject) -> Pointer:
        try:
            return Pointer.parse(found.data)
        except StateUnreadable as wrong:
            raise TargetRefused(
                self._store.uri_of(POINTER), f"{wrong}. Remove what is below {self.uri}, sync again"
            ) from wrong

    def _folder(self, key: str) -> BucketFolder:
        return BucketFolder(f"{self.uri}{key}", self._asked)

    def _drop(self, key: str) -> None:
        """Remove what a failed sync has staged; what can't be, goes once later ones are there."""
        try:
            for info in self._store.list(key):
                self._store.delete(info.key)
        except DestinationError as failure:
            log.warning("staged files stay for now", folder=key, error=str(failure))


def _etag(found: StoredObject | None) -> str | None:
    return None if found is None else found.version.etag
