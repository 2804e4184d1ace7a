"""Reads an archive's objects in Spark's tasks, with their checksums compared."""

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Protocol, TypeVar

from laredo_archive.codec import ByteSource
from laredo_archive.codec.arrow.types import ValueLacking, ValueUnfit
from laredo_archive.errors import ArtifactDamaged, ArtifactMissing
from laredo_archive.manifest.key_ranges import ObjectSlice
from laredo_archive.read import location
from laredo_archive.read.location import FoundArchive
from laredo_archive.read.objects import (
    CHECK_AND_CURE,
    MISSING,
    Checked,
    CheckedBlocks,
    Opened,
    ReadAhead,
)
from laredo_archive.storage.destination import Destination
from laredo_archive.storage.local import LocalDestination
from laredo_spark.errors import BoundaryGone, TypesUnfit
from laredo_spark.options import ReadOptions

_DRAIN_BYTES = 1 << 20


@dataclass(frozen=True)
class Objects:
    """The location of a read's objects; plain values, so that tasks needn't read the manifest."""

    #: The options of the read.
    asked: ReadOptions
    #: How many levels above the manifest its destination is.
    depth: int
    #: Turns a manifest's key into the destination's.
    locate: Callable[[str], str]
    #: The boundary that is read, for messages.
    boundary: str
    #: Whether columns were inferred from rows, as in RowShape.
    inferred: bool = False

    @classmethod
    def of(
        cls, asked: ReadOptions, found: FoundArchive, boundary: object, inferred: bool = False
    ) -> "Objects":
        """The objects of an archive."""
        depth = found.key_prefix.count("/")
        return cls(asked, depth, found.locate, str(boundary), inferred)

    def opener(self) -> "SliceOpener":
        """An opener of slices, for one task."""
        archive = location.parse(self.asked.path, self.asked.access())
        destination, _ = archive.split_at(self.depth)
        return SliceOpener(self, destination)


class SliceOpener:
    """Opens slices of objects; expected ones are fetched while earlier ones are read."""

    def __init__(self, objects: Objects, destination: Destination) -> None:
        self._objects = objects
        self._destination = destination
        self._expected: dict[str, ObjectSlice] = {}
        # A local file needs no request.
        local = isinstance(destination, LocalDestination)
        self._ahead = None if local else ReadAhead(self._fetch)

    def expect(self, parts: Iterable[ObjectSlice]) -> None:
        """Announce the slices that are opened next, in this order, and read up to their stops."""
        if self._ahead is not None:
            self._expected = {_name(part): part for part in parts}
            self._ahead.expect(self._expected)

    @contextmanager
    def __call__(self, part: ObjectSlice) -> Iterator[ByteSource]:
        """An artifact's bytes from the slice's start on.

        Of a whole file the sha256 is checked, of a part its blocks' checksums.

        :raises ArtifactDamaged: if they differ from the entry, or can't be parsed.
        :raises BoundaryGone: if the object isn't there any more, nor its archive's boundary.
        """
        asked, inferred = self._objects.asked, self._objects.inferred
        uri = self._destination.uri_of(self._objects.locate(part.entry.key))
        with closing(self._open_expected(part)) as source:
            checked = (
                Checked(source, part.entry, uri) if part.whole else CheckedBlocks(source, part, uri)
            )
            try:
                yield checked
            except (ValueError, ValueUnfit) as wrong:
                # A damaged file is reported by its checksum, not by the first parse error.
                _drain(checked)
                if inferred:
                    raise TypesUnfit(uri, str(wrong), asked.infer_rows) from None
                raise ArtifactDamaged(uri, f"{wrong}. {CHECK_AND_CURE}") from None
            except ValueLacking as lacking:
                raise lacking.with_location(uri) from None
            except OSError as wrong:
                raise ArtifactDamaged(uri, f"can't be read: {wrong}") from None
            _drain(checked)

    def _open_expected(self, part: ObjectSlice) -> Opened:
        if self._ahead is not None and self._expected.get(_name(part)) == part:
            return self._ahead.open(_name(part))
        return self._open(part)

    def _fetch(self, name: str) -> BinaryIO:
        part = self._expected[name]
        return self._open(part) if part.whole else PrefixReader(self._open(part), part.size_bytes)

    def _open(self, part: ObjectSlice) -> BinaryIO:
        try:
            return self._destination.open(self._objects.locate(part.entry.key), part.start)
        except ArtifactMissing as missing:
            return self._open_moved(missing, part)

    def _open_moved(self, missing: ArtifactMissing, part: ObjectSlice) -> BinaryIO:
        """Open the same bytes under the key that a later manifest has for them."""
        asked = self._objects.asked
        found = location.find(asked.path, asked.access())
        where = found.destination.uri_of(found.manifest_key)
        for entry in found.manifest.named():
            if entry.same_content(part.entry) and entry.sha256 is not None:
                if entry.key == part.entry.key:
                    raise ArtifactMissing(missing.uri, MISSING) from None
                return found.destination.open(found.locate(entry.key), part.start)
        raise BoundaryGone(where, f"{missing.uri}, which {self._objects.boundary} needs,") from None


class PrefixReader(io.RawIOBase, BinaryIO):
    """A source cut off after its first bytes, so that nothing else is fetched."""

    def __init__(self, source: BinaryIO, size_bytes: int) -> None:
        self._source = source
        self._left = size_bytes

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes, at most up to the cut."""
        data = self._source.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data

    def close(self) -> None:
        """The source too."""
        self._source.close()
        super().close()


def _name(part: ObjectSlice) -> str:
    return f"{part.start} {part.entry.key}"


def _drain(source: Checked | CheckedBlocks) -> None:
    """Read to the end of a whole file, or of a part's last block, where checksums are compared."""
    while left := _DRAIN_BYTES if isinstance(source, Checked) else source.left:
        if not source.read(min(left, _DRAIN_BYTES)):
            return


class Sized(Protocol):
    """A slice of an object, and whatever else a task knows of it."""

    @property
    def part(self) -> ObjectSlice: ...


Part = TypeVar("Part", bound=Sized)


def gathered(parts: Iterable[Part], share: int) -> list[list[Part]]:
    """Group parts, in their order, into tasks of about ``share`` bytes; a larger one is alone."""
    tasks: list[list[Part]] = []
    size = share
    for one in parts:
        if size >= share:
            tasks.append([])
            size = 0
        tasks[-1].append(one)
        size += one.part.size_bytes
    return tasks
