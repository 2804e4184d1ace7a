"""Objects of an archive: fetched ahead, and compared with their checksums.

A reader announces the objects that it will read, in order. The first bytes of the next ones are
fetched at the same time, and while one is parsed, more of it is fetched. So a reader waits for
bandwidth, not for latency, and holds a bounded number of bytes, whatever the objects' size.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import BinaryIO, Protocol

from laredo_archive.codec import ByteSource
from laredo_archive.codec.output import crc32
from laredo_archive.errors import ArtifactDamaged, ArtifactMissing
from laredo_archive.manifest.key_ranges import ObjectSlice
from laredo_archive.manifest.model import FormatEntry
from laredo_archive.storage.destination import Destination
from laredo_archive.storage.local import LocalDestination
from laredo_service.files import Digest

WINDOW = 16
"""Objects that are fetched before they are opened."""
WORKERS = 16
HELD_BYTES = 1 << 20
"""Bytes held of each object that is being fetched."""
PIECE_BYTES = 256 << 10
IDLE_S = 2.0


class Opened(ByteSource, Protocol):
    """Source of bytes that can be closed."""

    def close(self) -> None: ...


class Opener(Protocol):
    """Opens objects."""

    def expect(self, keys: Iterable[str]) -> None:
        """Announce the objects to open next, in order; earlier announcements are dropped."""

    def open(self, key: str) -> Opened:
        """An object from its beginning; raises like Destination.open, also while reading."""


def opener(destination: Destination) -> Opener:
    """Opener for ``destination``; a local file needs no fetching ahead."""
    if isinstance(destination, LocalDestination):
        return _AtOnce(destination)
    return ReadAhead(destination.open)


class _AtOnce:
    def __init__(self, destination: Destination) -> None:
        self._destination = destination

    def expect(self, keys: Iterable[str]) -> None:
        pass

    def open(self, key: str) -> Opened:
        return self._destination.open(key)


class ReadAhead:
    """Opens objects by ``fetch``, and fetches the next ones ahead; for one reading thread."""

    def __init__(self, fetch: Callable[[str], BinaryIO]) -> None:
        self._fetch = fetch
        self._expected: deque[str] = deque()
        self._begun: dict[str, _Fetched] = {}
        self._workers = _Workers()

    def expect(self, keys: Iterable[str]) -> None:
        """Announce the objects to open next, and begin to fetch the first of them."""
        for left in self._begun.values():
            left.close()
        self._begun.clear()
        self._expected = deque(keys)
        self._begin_more()

    def open(self, key: str) -> Opened:
        """An object, whether it was expected or not."""
        opened = self._begun.pop(key, None) or self._begin(key)
        self._begin_more()
        return opened

    def _begin_more(self) -> None:
        while self._expected and len(self._begun) < WINDOW:
            key = self._expected.popleft()
            self._begun[key] = self._begin(key)

    def _begin(self, key: str) -> "_Fetched":
        return _Fetched(lambda: self._fetch(key), self._workers)


class _Workers:
    """Daemon threads that end when there is nothing to do."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._count = 0

    def submit(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._jobs.put(job)
            if self._count < WORKERS:
                threading.Thread(target=self._work, name="read-ahead", daemon=True).start()
                self._count += 1

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_S)
            except Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._count -= 1
                        return
            else:
                job()


class _Fetched:
    """One object, fetched while less than HELD_BYTES of it wait to be read."""

    def __init__(self, open_: Callable[[], BinaryIO], workers: _Workers) -> None:
        self._open = open_
        self._workers = workers
        self._source: BinaryIO | None = None
        """Used only by the one job that fetches."""
        self._changed = threading.Condition()
        self._pieces: deque[bytes] = deque()
        self._held = 0
        self._fetching = False
        self._ended = False
        self._failure: Exception | None = None
        with self._changed:
            self._fetch_on()

    def read(self, size: int = -1, /) -> bytes:
        """Next bytes, at most ``size``; none at the object's end."""
        if size < 0:
            return b"".join(iter(lambda: self.read(HELD_BYTES), b""))
        with self._changed:
            self._changed.wait_for(lambda: self._pieces or self._ended)
            if not self._pieces:
                if self._failure is not None:
                    raise self._failure
                return b""
            piece = self._pieces.popleft()
            if len(piece) > size:
                self._pieces.appendleft(piece[size:])
                piece = piece[:size]
            self._held -= len(piece)
            self._fetch_on()
        return piece

    def close(self) -> None:
        """Fetch no more of it."""
        with self._changed:
            self._ended = True
            self._pieces.clear()
            if not self._fetching:
                self._let_go()

    def _fetch_on(self) -> None:
        if not (self._fetching or self._ended) and self._held <= HELD_BYTES // 2:
            self._fetching = True
            self._workers.submit(self._fetch)

    def _fetch(self) -> None:
        try:
            while self._take(self._next_piece()):
                pass
        except Exception as failure:  # noqa: BLE001  # raised to the reader
            with self._changed:
                self._failure = failure
                self._end()

    def _next_piece(self) -> bytes:
        if self._source is None:
            self._source = self._open()
        return self._source.read(PIECE_BYTES)

    def _take(self, piece: bytes) -> bool:
        """Keep a piece that was fetched; True if there is room for more."""
        with self._changed:
            if not piece or self._ended:
                self._end()
                return False
            self._pieces.append(piece)
            self._held += len(piece)
            self._changed.notify()
            self._fetching = self._held < HELD_BYTES
            return self._fetching

    def _end(self) -> None:
        self._ended = True
        self._fetching = False
        self._changed.notify()
        self._let_go()

    def _let_go(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            with suppress(Exception):  # nothing more is read of it
                source.close()


# Reads a part of an artifact, and checks its blocks by the CRC-32 in its entry's ``blocks``, if the
# writer recorded any. Of a whole file size and sha256 are compared.

CHECK_AND_CURE = (
    "Check it with laredo-archive verify; restore it from another destination, or read that one"
)


class CheckedBlocks:
    """Passes the bytes of a slice on, also those after it, and compares each block's checksum.

    It raises ArtifactDamaged.
    """

    def __init__(self, source: ByteSource, part: ObjectSlice, uri: str) -> None:
        self._source = source
        self._uri = uri
        self._blocks = part.blocks[::-1]
        self._at = part.start
        self._sum = 0

    @property
    def left(self) -> int:
        """Bytes up to the last block's end."""
        return self._blocks[0].stop - self._at if self._blocks else 0

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes; empty at the file's end.

        If blocks end among them, only up to the last such end, so that a piece is whole lines or
        messages, which needn't be joined with the next piece.
        """
        data = self._source.read(self._to_an_end(size))
        view = memoryview(data)
        while self._blocks and view:
            here = view[: self._blocks[-1].stop - self._at]
            self._sum = crc32(here, self._sum)
            self._at += len(here)
            view = view[len(here) :]
            if self._at == self._blocks[-1].stop:
                self._end_block()
        return data

    def _to_an_end(self, size: int) -> int:
        wanted = size
        for block in reversed(self._blocks):
            if block.stop > self._at + size:
                break
            wanted = block.stop - self._at
        return wanted

    def _end_block(self) -> None:
        block, found = self._blocks.pop(), self._sum
        self._sum = 0
        if found != block.sum:
            raise ArtifactDamaged(
                self._uri,
                f"the CRC-32 of its bytes {block.start} to {block.stop} is {found}, the manifest"
                f" has {block.sum}: they have changed since they were written. {CHECK_AND_CURE}",
            )


# The interface by which long reads and copies report their progress.


class ReadProgress(Protocol):
    """Receives the progress of a read or copy. May be called from several threads."""

    def step(self, text: str, /) -> None:
        """A step begins, which ``text`` describes."""

    def expect(self, size_bytes: int, /) -> None:
        """There are ``size_bytes`` more to process (fewer, if negative)."""

    def advance(self, size_bytes: int, /) -> None:
        """``size_bytes`` more were processed."""


class Unwatched:
    """Progress that nobody watches."""

    def step(self, text: str) -> None:
        """Ignore the step."""

    def expect(self, size_bytes: int) -> None:
        """Ignore the expected bytes."""

    def advance(self, size_bytes: int) -> None:
        """Ignore the bytes that were read."""


UNWATCHED = Unwatched()

# Reads a whole object and compares its size and sha256 with its entry's.

MISSING = (
    "the manifest names this object (was it deleted by hand, or not copied along?"
    " Restore it, or read another destination)"
)
_CURE = "Restore it from another destination, or read that one"


class Checked:
    """Passes a whole object's bytes on, and compares size and sha256 at the end.

    It raises ArtifactMissing and ArtifactDamaged.
    """

    def __init__(
        self, source: ByteSource, entry: FormatEntry, uri: str, progress: ReadProgress = UNWATCHED
    ) -> None:
        self._source = source
        self._entry = entry
        self._uri = uri
        self._progress = progress
        self._passed = Digest()

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes; empty at the end."""
        try:
            data = self._source.read(size)
        except ArtifactMissing as missing:
            raise ArtifactMissing(self._uri, MISSING) from missing
        except OSError as failure:
            raise ArtifactDamaged(self._uri, f"can't be read: {failure}") from failure
        self._passed.update(data)
        self._progress.advance(len(data))
        if self._passed.size > self._entry.size_bytes:
            # Not read on: it may have no end.
            raise ArtifactDamaged(
                self._uri,
                f"it has more than the {self._entry.size_bytes} bytes in the manifest. {_CURE}",
            )
        if not data:
            self._compare()
        return data

    def _compare(self) -> None:
        if self._passed.size < self._entry.size_bytes:
            raise ArtifactDamaged(self._uri, wrong_size(self._passed.size, self._entry))
        found = self._passed.hex()
        if self._entry.sha256 not in (None, found):
            raise ArtifactDamaged(
                self._uri,
                f"its sha256 is {found}, the manifest has {self._entry.sha256}: its bytes have"
                f" changed since they were written. {_CURE}",
            )


def wrong_size(size: int, entry: FormatEntry) -> str:
    """Message about an object of another size than its entry's."""
    how = "cut off: " if size < entry.size_bytes else ""
    return f"{how}it has {size} bytes, the manifest has {entry.size_bytes}. {_CURE}"
