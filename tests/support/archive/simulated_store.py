"""An object store in memory, and a client of it over a bad network.

What S3 adds is here too: answers 409, requests that come twice, listings page by
page, and uploads in parts, which are completed late, or never.
"""

import hashlib
import io
import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import BinaryIO, TypeVar

from laredo_archive.errors import (
    ArtifactMissing,
    CommitConflict,
    CommitStateUnknown,
    DestinationUnavailable,
    NameTaken,
)
from laredo_archive.storage.destination import ObjectInfo, ObjectVersion, StoredObject
from tests.support.archive.world import Actor, World

T = TypeVar("T")

LATEST_S = 60.0
"""Longest time from a request's answer to its effect."""

PAGE = 4
"""Objects in one answer to a listing."""

PART_BYTES = 100
READS = 3
"""Attempts of a destination for a request without visible effect."""

CONFLICTS = 3
"""Attempts of a destination after 409."""


@dataclass
class Faults:
    """Probability of each fault, from 0 to 1."""

    away: float = 0.0
    lost: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0
    twice: float = 0.0
    echo: float = 0.0
    conflict: float = 0.0

    @classmethod
    def all(cls, probability: float) -> "Faults":
        """Every kind as often."""
        return cls(*[probability] * 7)


@dataclass
class Parts:
    """An upload in parts that was begun."""

    key: str
    begun: datetime
    data: dict[int, bytes] = field(default_factory=dict)


class NoSuchUpload(Exception):
    """It was completed, aborted or collected."""


class MemoryStore:
    """Objects of a store. ``on_swap``, ``on_delete``: called before every such change."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.objects: dict[str, tuple[bytes, datetime]] = {}
        self.uploads: dict[int, Parts] = {}
        self.faults = Faults()
        self.away_until = 0.0
        self.on_swap: Callable[[MemoryStore, str, bytes | None, bytes], None] = lambda *_: None
        self.on_delete: Callable[[MemoryStore, str], None] = lambda *_: None
        self._upload_ids = itertools.count(1)

    @property
    def uri(self) -> str:
        return f"mem://{self.name}/"

    def swap(self, key: str, data: bytes, expected: str | None) -> ObjectVersion:
        before = self.objects.get(key)
        if (etag_of(before[0]) if before else None) != expected:
            raise CommitConflict(self.uri + key)
        self.on_swap(self, key, before[0] if before else None, data)
        self.objects[key] = (data, self.world.date)
        return ObjectVersion(etag_of(data), self.world.date)

    def create(self, key: str, data: bytes) -> None:
        if key in self.objects:
            raise NameTaken(self.uri + key)
        self.objects[key] = (data, self.world.date)

    def delete(self, key: str) -> None:
        if key in self.objects:
            self.on_delete(self, key)
            del self.objects[key]

    def begin(self, key: str) -> int:
        number = next(self._upload_ids)
        self.uploads[number] = Parts(key, self.world.date)
        return number

    def put_part(self, number: int, index: int, data: bytes) -> None:
        self._parts(number).data[index] = data

    def complete(self, number: int) -> None:
        parts = self._parts(number)
        self.create(parts.key, b"".join(data for _, data in sorted(parts.data.items())))
        del self.uploads[number]

    def drop_upload(self, number: int) -> None:
        self.uploads.pop(number, None)

    def _parts(self, number: int) -> Parts:
        if number not in self.uploads:
            raise NoSuchUpload
        return self.uploads[number]


@lru_cache(maxsize=4096)
def etag_of(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


class MemoryDestination:
    """One actor's way to a store."""

    def __init__(self, store: MemoryStore, actor: Actor) -> None:
        self._store = store
        self._actor = actor
        self._chance = store.world.chance

    @property
    def uri(self) -> str:
        return self._store.uri

    @property
    def location(self) -> str:
        return self._store.uri

    def uri_of(self, key: str) -> str:
        return self._store.uri + key

    def get(self, key: str) -> StoredObject | None:
        def answer() -> StoredObject | None:
            found = self._store.objects.get(key)
            if found is None:
                return None
            return StoredObject(found[0], ObjectVersion(etag_of(found[0]), self._store.world.date))

        return self._ask(key, answer)

    def head(self, key: str) -> ObjectInfo | None:
        def answer() -> ObjectInfo | None:
            found = self._store.objects.get(key)
            return None if found is None else ObjectInfo(key, len(found[0]), found[1])

        return self._ask(key, answer)

    def open(self, key: str, offset: int = 0) -> BinaryIO:
        def answer() -> BinaryIO:
            found = self._store.objects.get(key)
            if found is None:
                raise ArtifactMissing(self.uri_of(key))
            return io.BytesIO(found[0][offset:])

        return self._ask(key, answer)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        after = ""
        while page := self._ask(prefix, lambda after=after: self._page(prefix, after)):
            yield from page
            after = page[-1].key

    def _page(self, prefix: str, after: str) -> "list[ObjectInfo]":
        keys = sorted(key for key in self._store.objects if key.startswith(prefix) and key > after)
        objects = self._store.objects
        return [ObjectInfo(key, len(objects[key][0]), objects[key][1]) for key in keys[:PAGE]]

    def swap(self, key: str, data: bytes, expected: str | None) -> ObjectVersion:
        return self._change(key, lambda: self._store.swap(key, data, expected))

    def upload(self, key: str) -> "MemoryUpload":
        return MemoryUpload(self, key, in_parts=self._chance.random() < 0.4)

    def copy(self, source: str, key: str, size_bytes: int) -> "MemoryCopy | None":
        return MemoryCopy(self, source, key) if self._chance.random() < 0.6 else None

    def copied(self, source: str, key: str) -> None:
        def effect() -> None:
            found = self._store.objects.get(source)
            if found is None:
                raise ArtifactMissing(self.uri_of(source))
            self._store.create(key, found[0])

        self._change(key, effect)

    def finish(self, key: str, data: bytes) -> None:
        self._change(key, lambda: self._store.create(key, data))

    def delete(self, key: str) -> None:
        # Once answered it doesn't come again: no destination repeats a deletion that is unclear.
        self._change(key, lambda: self._store.delete(key), echoes=False)

    def collect_unfinished(
        self, prefix: str, older_than: timedelta, is_ours: Callable[[str], bool]
    ) -> int:
        def answer() -> list[int]:
            limit = self._store.world.date - older_than
            return [
                number
                for number, parts in self._store.uploads.items()
                if parts.key.startswith(prefix) and parts.begun <= limit and is_ours(parts.key)
            ]

        found = self._ask(prefix, answer)
        for number in found:
            self.drop_upload(prefix, number)
        return len(found)

    # Uploads in parts.

    def begin(self, key: str) -> int:
        return self._surely(key, lambda: self._store.begin(key))

    def put_part(self, key: str, number: int, index: int, data: bytes) -> None:
        self._surely(key, lambda: self._store.put_part(number, index, data))

    def complete(self, key: str, number: int) -> None:
        try:
            self._change(key, lambda: self._store.complete(number))
        except NoSuchUpload:
            if self.head(key) is not None:
                raise NameTaken(self.uri_of(key)) from None
            raise DestinationUnavailable(self.uri_of(key), "the upload is gone") from None

    def drop_upload(self, key: str, number: int) -> None:
        self._surely(key, lambda: self._store.drop_upload(number))

    def _surely(self, key: str, effect: Callable[[], T]) -> T:
        """For what may be done twice; what the first time left behind is collected."""
        for _ in range(3):
            try:
                return self._change(key, effect)
            except CommitStateUnknown:
                continue
            except NoSuchUpload:
                raise DestinationUnavailable(self.uri_of(key), "the upload is gone") from None
        raise DestinationUnavailable(self.uri_of(key), "unclear, three times")

    # The network.

    def _travel(self, key: str) -> None:
        store, chance = self._store, self._chance
        self._actor.step(chance.expovariate(20))
        if store.world.now < store.away_until or chance.random() < store.faults.away:
            raise DestinationUnavailable(self.uri_of(key), "away")

    def _ask(self, key: str, answer: Callable[[], T]) -> T:
        for _ in range(READS):
            with suppress(DestinationUnavailable):
                self._travel(key)
                break
        else:
            raise DestinationUnavailable(self.uri_of(key), f"away, {READS} times")
        answered = answer()
        self._actor.step(self._chance.expovariate(20))
        return answered

    def _change(self, key: str, effect: Callable[[], T], *, echoes: bool = True) -> T:
        faults = self._store.faults
        for _ in range(CONFLICTS):
            self._travel(key)
            draw = self._chance.random()
            if draw < faults.conflict:
                self._actor.step(self._chance.expovariate(20))
                continue
            draw -= faults.conflict
            for probability, fate in [
                (faults.lost, self._lost),
                (faults.answer_lost, self._answer_lost),
                (faults.late, self._late),
                (faults.twice, self._twice),
                (faults.echo if echoes else 0.0, self._echoed),
            ]:
                if draw < probability:
                    return fate(key, effect)
                draw -= probability
            done = effect()
            self._actor.step(self._chance.expovariate(20))
            return done
        raise CommitStateUnknown(self.uri_of(key), f"409, {CONFLICTS} times")

    def _lost(self, key: str, effect: Callable[[], T]) -> T:
        self._actor.step(self._chance.uniform(0, 5))
        raise CommitStateUnknown(self.uri_of(key), "time-out")

    def _answer_lost(self, key: str, effect: Callable[[], T]) -> T:
        _whatever_comes(effect)
        self._actor.step(self._chance.uniform(0, 5))
        raise CommitStateUnknown(self.uri_of(key), "connection reset")

    def _late(self, key: str, effect: Callable[[], T]) -> T:
        delay = self._chance.uniform(0, LATEST_S)
        self._store.world.later(delay, lambda: _whatever_comes(effect))
        self._actor.step(self._chance.uniform(0, 5))
        raise CommitStateUnknown(self.uri_of(key), "time-out")

    def _twice(self, key: str, effect: Callable[[], T]) -> T:
        """The first answer was lost, and the request was sent again: 412, or no such upload."""
        _whatever_comes(effect)
        self._actor.step(self._chance.expovariate(20))
        return effect()

    def _echoed(self, key: str, effect: Callable[[], T]) -> T:
        """Answered as it should be, and it comes once more, later."""
        self._store.world.later(self._chance.uniform(0, LATEST_S), lambda: _whatever_comes(effect))
        done = effect()
        self._actor.step(self._chance.expovariate(20))
        return done


def _whatever_comes(effect: Callable[[], object]) -> None:
    with suppress(CommitConflict, NameTaken, NoSuchUpload, ArtifactMissing):
        effect()


class MemoryUpload:
    """Bytes that become an object when they are finished, at once or in parts."""

    def __init__(self, destination: MemoryDestination, key: str, *, in_parts: bool) -> None:
        self._destination = destination
        self._key = key
        self._in_parts = in_parts
        self._data = bytearray()
        self._number: int | None = None
        self._sent = 0
        self._finished = False

    def write(self, data: bytes | memoryview) -> int:
        self._data += data
        if self._in_parts and len(self._data) >= PART_BYTES:
            self._send_part()
        return len(data)

    def _send_part(self) -> None:
        if self._number is None:
            self._number = self._destination.begin(self._key)
        self._destination.put_part(self._key, self._number, self._sent, bytes(self._data))
        self._sent += 1
        self._data.clear()

    def finish(self) -> None:
        if self._number is None:
            self._destination.finish(self._key, bytes(self._data))
        else:
            if self._data:
                self._send_part()
            self._destination.complete(self._key, self._number)
        self._finished = True

    def abort(self) -> None:
        if self._number is not None and not self._finished:
            self._finished = True
            with suppress(DestinationUnavailable):
                self._destination.drop_upload(self._key, self._number)


class MemoryCopy:
    """A copy that the store makes when it is finished."""

    def __init__(self, destination: MemoryDestination, source: str, key: str) -> None:
        self._destination = destination
        self._source = source
        self._key = key

    def finish(self) -> None:
        self._destination.copied(self._source, self._key)

    def abort(self) -> None:
        """There is nothing to drop."""
