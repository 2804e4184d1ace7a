"""S3 beside which something else happens, once, at a chosen moment: as ScriptedDestination.

Objects, ETags and conditions are the server's; the time is the tests'.
"""

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any, BinaryIO

from laredo_archive.errors import CommitStateUnknown, DestinationUnavailable
from laredo_archive.manifest import parser
from laredo_archive.manifest.model import Manifest
from laredo_archive.storage.destination import (
    ObjectInfo,
    ObjectVersion,
    StoredObject,
    UnfinishedObject,
    Upload,
)
from laredo_archive.storage.s3.destination import S3Destination
from tests.support.archive.archiving import MANIFEST
from tests.support.archive.world import World


class Objects(MutableMapping[str, tuple[bytes, datetime]]):
    """Objects of a prefix, with their dates in the tests' time."""

    def __init__(self, s3: S3Destination, raw: Any, world: World) -> None:
        self._s3 = s3
        self._raw = raw
        self._world = world
        self._since: dict[str, datetime] = {}

    def stamp(self, key: str, date: datetime | None = None) -> None:
        """It was written now, or then."""
        self._since[key] = date or self._world.date

    def since(self, key: str) -> datetime:
        return self._since[key]

    def __getitem__(self, key: str) -> tuple[bytes, datetime]:
        if key not in self._since or self._s3.head(key) is None:
            raise KeyError(key)
        with closing(self._s3.open(key)) as file:
            return file.read(), self._since[key]

    def __setitem__(self, key: str, value: tuple[bytes, datetime]) -> None:
        self._raw.put_object(**self._where(key), Body=value[0])
        self.stamp(key, value[1])

    def __delitem__(self, key: str) -> None:
        self._s3.delete(key)

    def __iter__(self) -> Iterator[str]:
        return (found.key for found in self._s3.list(""))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __copy__(self) -> dict[str, tuple[bytes, datetime]]:
        return dict(self)

    def _where(self, key: str) -> dict[str, str]:
        bucket, _, name = self._s3.uri_of(key).removeprefix("s3://").partition("/")
        return {"Bucket": bucket, "Key": name}


class S3Store:
    """One prefix, and what is done to it from outside."""

    def __init__(self, s3: S3Destination, raw: Any, world: World) -> None:
        self.s3 = s3
        self.world = world
        self.away_until = 0.0
        self._objects = Objects(s3, raw, world)

    @property
    def uri(self) -> str:
        return self.s3.uri

    @property
    def objects(self) -> Objects:
        return self._objects

    @objects.setter
    def objects(self, wanted: dict[str, tuple[bytes, datetime]]) -> None:
        self._objects.clear()
        self._objects.update(wanted)

    def create(self, key: str, data: bytes) -> None:
        self._objects[key] = (data, self.world.date)


class ScriptedS3:
    """One actor's way to a store."""

    def __init__(self, store: S3Store) -> None:
        self.store = store
        self._s3 = store.s3
        self.before_swap: list[Callable[[], object]] = []
        self.answers_lost = 0
        self.requests: list[tuple[str, str]] = []

    @property
    def uri(self) -> str:
        return self._s3.uri

    @property
    def location(self) -> str:
        return self._s3.location

    @property
    def manifest(self) -> Manifest:
        return parser.parse(self.store.objects[MANIFEST][0], self.uri_of(MANIFEST))

    def another(self) -> "ScriptedS3":
        """Somebody else's way to the same store."""
        return ScriptedS3(self.store)

    def uri_of(self, key: str) -> str:
        return self._s3.uri_of(key)

    def get(self, key: str) -> StoredObject | None:
        self._travel(key)
        found = self._s3.get(key)
        return found and StoredObject(
            found.data, ObjectVersion(found.version.etag, self.store.world.date)
        )

    def head(self, key: str) -> ObjectInfo | None:
        self.requests.append(("head", key))
        self._travel(key)
        found = self._s3.head(key)
        return found and self._dated(found)

    def open(self, key: str, offset: int = 0) -> BinaryIO:
        self._travel(key)
        return self._s3.open(key, offset)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._travel(prefix)
        return (self._dated(found) for found in self._s3.list(prefix))

    def swap(self, key: str, data: bytes, expected: str | None) -> ObjectVersion:
        self.requests.append(("swap", key))
        if self.before_swap:
            self.before_swap.pop(0)()
        self._travel(key)
        version = self._s3.swap(key, data, expected)
        self.store.objects.stamp(key)
        if self.answers_lost:
            self.answers_lost -= 1
            raise CommitStateUnknown(self.uri_of(key), "the answer was lost")
        return ObjectVersion(version.etag, self.store.world.date)

    def upload(self, key: str) -> "ScriptedUpload":
        self._travel(key)
        return ScriptedUpload(self, key, self._s3.upload(key))

    def copy(self, source: str, key: str, size_bytes: int) -> "ScriptedEnd | None":
        self._travel(key)
        copying = self._s3.copy(source, key, size_bytes)
        return None if copying is None else ScriptedEnd(self, key, copying)

    def delete(self, key: str) -> None:
        self._travel(key)
        self._s3.delete(key)

    def collect_unfinished(
        self, prefix: str, older_than: timedelta, is_ours: Callable[[str], bool]
    ) -> int:
        self._travel(prefix)
        return self._s3.collect_unfinished(prefix, older_than, is_ours)

    def finishing(self, key: str) -> None:
        self.requests.append(("put", key))
        self._travel(key)

    def _travel(self, key: str) -> None:
        if self.store.world.now < self.store.away_until:
            raise DestinationUnavailable(f"{self.uri}{key}", "away").at(self.location)

    def _dated(self, found: ObjectInfo) -> ObjectInfo:
        return ObjectInfo(found.key, found.size_bytes, self.store.objects.since(found.key))


class ScriptedEnd:
    """An object that isn't there before its end."""

    def __init__(self, destination: ScriptedS3, key: str, unfinished: UnfinishedObject) -> None:
        self._destination = destination
        self._key = key
        self._unfinished = unfinished
        self.abort = unfinished.abort

    def finish(self) -> None:
        self._destination.finishing(self._key)
        self._unfinished.finish()
        self._destination.store.objects.stamp(self._key)


class ScriptedUpload(ScriptedEnd):
    """An object in the making."""

    def __init__(self, destination: ScriptedS3, key: str, upload: Upload) -> None:
        super().__init__(destination, key, upload)
        self.write = upload.write
