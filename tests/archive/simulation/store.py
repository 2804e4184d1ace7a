"""An object store in memory, and a client of it over a bad network."""

import hashlib
import io
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import BinaryIO, TypeVar

from laredo_archive.destination import Found, ObjectInfo, Version
from laredo_archive.errors import (
    ArtifactMissing,
    DestinationUnavailable,
    NameTaken,
    OutcomeUnclear,
    SwapLost,
)
from tests.archive.simulation.world import Actor, World

T = TypeVar("T")

LATEST_S = 60.0
"""How much later than its answer a request may take effect."""


@dataclass
class Faults:
    """How often what happens, from 0 to 1."""

    away: float = 0.0
    lost: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0
    twice: float = 0.0


class MemoryStore:
    """What a store holds. ``watch`` is told of every change of a manifest and every deletion."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.objects: dict[str, tuple[bytes, datetime]] = {}
        self.faults = Faults()
        self.away_until = 0.0
        self.on_swap: Callable[[MemoryStore, str, bytes | None, bytes], None] = lambda *_: None
        self.on_delete: Callable[[MemoryStore, str], None] = lambda *_: None

    @property
    def uri(self) -> str:
        return f"mem://{self.name}/"

    def swap(self, key: str, data: bytes, expected: str | None) -> Version:
        before = self.objects.get(key)
        if (etag_of(before[0]) if before else None) != expected:
            raise SwapLost(self.uri + key)
        self.on_swap(self, key, before[0] if before else None, data)
        self.objects[key] = (data, self.world.date)
        return Version(etag_of(data), self.world.date)

    def create(self, key: str, data: bytes) -> None:
        if key in self.objects:
            raise NameTaken(self.uri + key)
        self.objects[key] = (data, self.world.date)

    def delete(self, key: str) -> None:
        if key in self.objects:
            self.on_delete(self, key)
            del self.objects[key]


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
    def place(self) -> str:
        return self._store.uri

    def uri_of(self, key: str) -> str:
        return self._store.uri + key

    def get(self, key: str) -> Found | None:
        def answer() -> Found | None:
            found = self._store.objects.get(key)
            if found is None:
                return None
            return Found(found[0], Version(etag_of(found[0]), self._store.world.date))

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
        def answer() -> Iterator[ObjectInfo]:
            return iter(
                [
                    ObjectInfo(key, len(data), modified)
                    for key, (data, modified) in self._store.objects.items()
                    if key.startswith(prefix)
                ]
            )

        return self._ask(prefix, answer)

    def swap(self, key: str, data: bytes, expected: str | None) -> Version:
        return self._change(key, lambda: self._store.swap(key, data, expected))

    def upload(self, key: str) -> "MemoryUpload":
        self._ask(key, lambda: None)
        return MemoryUpload(self, key)

    def finish(self, key: str, data: bytes) -> None:
        self._change(key, lambda: self._store.create(key, data))

    def delete(self, key: str) -> None:
        self._change(key, lambda: self._store.delete(key))

    def collect_unfinished(self, prefix: str, older_than: timedelta) -> int:
        return 0

    def _travel(self, key: str) -> None:
        store, chance = self._store, self._chance
        self._actor.step(chance.expovariate(20))
        if store.world.now < store.away_until or chance.random() < store.faults.away:
            raise DestinationUnavailable(self.uri_of(key), "away")

    def _ask(self, key: str, answer: Callable[[], T]) -> T:
        self._travel(key)
        answered = answer()
        self._actor.step(self._chance.expovariate(20))
        return answered

    def _change(self, key: str, effect: Callable[[], T]) -> T:
        self._travel(key)
        faults, draw = self._store.faults, self._chance.random()
        for probability, fate in [
            (faults.lost, self._lost),
            (faults.answer_lost, self._answer_lost),
            (faults.late, self._late),
            (faults.twice, self._twice),
        ]:
            if draw < probability:
                return fate(key, effect)
            draw -= probability
        done = effect()
        self._actor.step(self._chance.expovariate(20))
        return done

    def _lost(self, key: str, effect: Callable[[], T]) -> T:
        self._actor.step(self._chance.uniform(0, 5))
        raise OutcomeUnclear(self.uri_of(key), "time-out")

    def _answer_lost(self, key: str, effect: Callable[[], T]) -> T:
        _whatever_comes(effect)
        self._actor.step(self._chance.uniform(0, 5))
        raise OutcomeUnclear(self.uri_of(key), "connection reset")

    def _late(self, key: str, effect: Callable[[], T]) -> T:
        delay = self._chance.uniform(0, LATEST_S)
        self._store.world.later(delay, lambda: _whatever_comes(effect))
        self._actor.step(self._chance.uniform(0, 5))
        raise OutcomeUnclear(self.uri_of(key), "time-out")

    def _twice(self, key: str, effect: Callable[[], T]) -> T:
        _whatever_comes(effect)
        self._actor.step(self._chance.expovariate(20))
        return effect()


def _whatever_comes(effect: Callable[[], object]) -> None:
    with suppress(SwapLost, NameTaken):
        effect()


class MemoryUpload:
    """Bytes that become an object when they are finished."""

    def __init__(self, destination: MemoryDestination, key: str) -> None:
        self._destination = destination
        self._key = key
        self._data = bytearray()

    def write(self, data: bytes | memoryview) -> int:
        self._data += data
        return len(data)

    def finish(self) -> None:
        self._destination.finish(self._key, bytes(self._data))

    def abort(self) -> None:
        pass
