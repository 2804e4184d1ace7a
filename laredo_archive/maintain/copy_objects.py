"""Copies objects from one destination to another, several at a time, and checks them."""

import threading
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from laredo_archive.codec import ByteSource
from laredo_archive.errors import ArtifactMissing
from laredo_archive.failpoint import reach
from laredo_archive.manifest.object_keys import NewNames
from laredo_archive.read.objects import ReadProgress
from laredo_archive.storage.destination import Destination
from laredo_archive.write.manifest_store import Environment
from laredo_archive.write.uploads import Content, holds, is_there, sha256_of, store_object

LARGE_BYTES = 8 << 20
LARGE_AT_ONCE = 2
SMALL_AT_ONCE = 8
"""Objects at the same time. A large one is bound by bandwidth, and its upload has threads and
memory of its own."""


class Load(NamedTuple):
    """One object to copy."""

    #: The bytes to copy.
    content: Content
    #: The key that it should get.
    name: str


@dataclass
class Tally:
    """Counts of a copy so far."""

    #: Objects copied.
    copied: int = 0
    #: Objects that were there already, byte for byte.
    adopted: int = 0
    #: Bytes copied.
    size_bytes: int = 0


class _Ended(Exception):
    """Another object's failure ends the copying of this one."""


class Carrier:
    """Copies objects into ``destination``; ``names`` has their keys there, by origin."""

    def __init__(
        self,
        destination: Destination,
        new_names: NewNames,
        environment: Environment,
        progress: ReadProgress,
    ) -> None:
        self.tally = Tally()
        self.names: dict[str, str] = {}
        self._destination = destination
        self.new_names = new_names
        self._environment = environment
        self._progress = progress
        self._lock = threading.Lock()

    def bring(self, loads: Sequence[Load], there: Collection[str], avoid: Collection[str]) -> None:
        """Copy, or adopt, all of ``loads``; finished objects stay if another fails.

        ``there``: names that are taken; those in ``avoid`` aren't adopted either.

        :raises ArtifactDamaged, ArtifactMissing: if an object that is read differs from its entry.
        :raises DestinationError: if source or target is unavailable, or the target is full.
        """
        ending = threading.Event()
        carried = [_Carried(load, self._progress, ending) for load in loads]
        self._progress.expect(sum(one.left for one in carried))
        try:
            large = [one for one in carried if one.is_large]
            small = [one for one in carried if not one.is_large]
            self._side_by_side(large, LARGE_AT_ONCE, there, avoid)
            self._side_by_side(small, SMALL_AT_ONCE, there, avoid)
        finally:
            self._progress.expect(-sum(one.left for one in carried))

    def _side_by_side(
        self,
        carried: "Sequence[_Carried]",
        at_once: int,
        there: Collection[str],
        avoid: Collection[str],
    ) -> None:
        with ThreadPoolExecutor(at_once, thread_name_prefix="copy") as pool:
            try:
                running = [pool.submit(self._bring_one, one, there, avoid) for one in carried]
                done, _ = wait(running, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
            except BaseException:
                for one in carried:
                    one.ending.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _bring_one(self, one: "_Carried", there: Collection[str], avoid: Collection[str]) -> None:
        name = one.load.name
        if name in there and name not in avoid and self._is_same(name, one):
            with self._lock:
                self.names[one.load.content.origin] = name
                self.tally.adopted += 1
            return
        if name in there or name in avoid:
            name = self.new_names.instead_of(name)
        self._progress.step(name)
        name = store_object(
            self._destination,
            name,
            replace(one.load.content, open=one.open),
            avoid=avoid,
            new_names=self.new_names,
            environment=self._environment,
        )
        with self._lock:
            self.names[one.load.content.origin] = name
            self.tally.copied += 1
            self.tally.size_bytes += one.load.content.size_bytes
        reach("copy.uploaded")

    def _is_same(self, name: str, one: "_Carried") -> bool:
        """True if the existing object has the same content, mostly from an earlier try."""
        content = one.load.content
        if not is_there(self._destination, name, content.size_bytes):
            return False
        self._progress.step(f"{name}: there already, compared")
        if content.sha256 is None:
            content = replace(content, sha256=sha256_of(content))
        try:
            return holds(self._destination, name, content, one.advance)
        except ArtifactMissing:
            return False


class _Carried:
    """One load that is being copied, with its part of the progress."""

    def __init__(self, load: Load, progress: ReadProgress, ending: threading.Event) -> None:
        self.load = load
        self.left = load.content.size_bytes
        self.ending = ending
        self._progress = progress

    @property
    def is_large(self) -> bool:
        return self.load.content.size_bytes >= LARGE_BYTES

    def advance(self, size_bytes: int) -> None:
        """Report progress by ``size_bytes``; bytes that are read twice count once."""
        if self.ending.is_set():
            raise _Ended
        counted = min(size_bytes, self.left)
        self.left -= counted
        self._progress.advance(counted)

    @contextmanager
    def open(self) -> Iterator[ByteSource]:
        """Open the content to copy."""
        with self.load.content.open() as source:
            yield _Watched(source, self)


class _Watched:
    def __init__(self, source: ByteSource, one: _Carried) -> None:
        self._source = source
        self._one = one

    def read(self, size: int = -1, /) -> bytes:
        data = self._source.read(size)
        self._one.advance(len(data))
        return data
