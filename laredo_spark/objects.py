"""An archive's objects as tasks read them: checked, and with one message if they can't be."""

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Protocol, TypeVar

from laredo_archive.codec import Source
from laredo_archive.codec.arrow.errors import ValueLacking, ValueUnfit
from laredo_archive.errors import ArtifactDamaged, ArtifactMissing
from laredo_archive.manifest.key_ranges import Slice
from laredo_archive.manifest.model import FormatEntry
from laredo_archive.read import location
from laredo_archive.read.artifact_reader import MISSING, Checked
from laredo_archive.read.checked_blocks import CHECK_AND_CURE, CheckedBlocks
from laredo_archive.read.location import FoundArchive
from laredo_archive.read.read_ahead import Opened, ReadAhead
from laredo_archive.storage.destination import Destination
from laredo_archive.storage.local.destination import LocalDestination
from laredo_spark.errors import BoundaryGone, TypesUnfit
from laredo_spark.options import ReadOptions

_DRAIN_BYTES = 1 << 20


@dataclass(frozen=True)
class Objects:
    """Where a read's objects are; plain values, so that tasks needn't read the manifest.

    ``depth``: how many levels above the manifest its destination is. ``boundary`` is for
    messages. ``inferred``: as in RowShape.
    """

    asked: ReadOptions
    depth: int
    locate: Callable[[str], str]
    boundary: str
    inferred: bool = False

    @classmethod
    def of(
        cls, asked: ReadOptions, found: FoundArchive, boundary: object, inferred: bool = False
    ) -> "Objects":
        """Those of an archive that was found."""
        depth = found.key_prefix.count("/")
        return cls(asked, depth, found.locate, str(boundary), inferred)

    def opener(self) -> "SliceOpener":
        """What opens slices, one after the other."""
        place = location.parse(self.asked.path, self.asked.access())
        destination, _ = place.seen_from(self.depth)
        return SliceOpener(self, destination)


class SliceOpener:
    """Opens slices; those that are expected, while the ones before are read."""

    def __init__(self, objects: Objects, destination: Destination) -> None:
        self._objects = objects
        self._destination = destination
        self._expected: dict[str, Slice] = {}
        # A file is there at once, anything else takes a request.
        local = isinstance(destination, LocalDestination)
        self._ahead = None if local else ReadAhead(self._fetch)

    def expect(self, parts: Iterable[Slice]) -> None:
        """These will be opened next, in this order, and not read beyond their stops."""
        if self._ahead is not None:
            self._expected = {_name(part): part for part in parts}
            self._ahead.expect(self._expected)

    @contextmanager
    def __call__(self, part: Slice) -> Iterator[Source]:
        """An artifact's bytes from the slice's start on.

        Of a whole file the sha256 is checked, of a part its blocks' checksums.

        :raises ArtifactDamaged: if they aren't what the entry says, or can't be parsed.
        :raises BoundaryGone: if the object isn't there any more, nor its archive's boundary.
        """
        asked, inferred = self._objects.asked, self._objects.inferred
        uri = self._destination.uri_of(self._objects.locate(part.entry.key))
        with closing(self._begun(part)) as source:
            checked = (
                Checked(source, part.entry, uri) if part.whole else CheckedBlocks(source, part, uri)
            )
            try:
                yield checked
            except (ValueError, ValueUnfit) as wrong:
                # A damaged file is told by its checksum rather than by where it first hurt.
                _drain(checked)
                if inferred:
                    raise TypesUnfit(uri, str(wrong), asked.infer_rows) from None
                raise ArtifactDamaged(uri, f"{wrong}. {CHECK_AND_CURE}") from None
            except ValueLacking as lacking:
                raise lacking.placed(uri) from None
            except OSError as wrong:
                raise ArtifactDamaged(uri, f"can't be read: {wrong}") from None
            _drain(checked)

    def _begun(self, part: Slice) -> Opened:
        if self._ahead is not None and self._expected.get(_name(part)) == part:
            return self._ahead.open(_name(part))
        return self._opened(part)

    def _fetch(self, name: str) -> BinaryIO:
        part = self._expected[name]
        return self._opened(part) if part.whole else UpTo(self._opened(part), part.size_bytes)

    def _opened(self, part: Slice) -> BinaryIO:
        try:
            return self._destination.open(self._objects.locate(part.entry.key), part.start)
        except ArtifactMissing as missing:
            return self._placed_anew(missing, part)

    def _placed_anew(self, missing: ArtifactMissing, part: Slice) -> BinaryIO:
        """The same bytes under the name that a later manifest has for them."""
        asked = self._objects.asked
        found = location.find(asked.path, asked.access())
        where = found.destination.uri_of(found.manifest_key)
        for entry in _entries(found):
            if entry.same_content(part.entry) and entry.sha256 is not None:
                if entry.key == part.entry.key:
                    raise ArtifactMissing(missing.uri, MISSING) from None
                return found.destination.open(found.locate(entry.key), part.start)
        raise BoundaryGone(where, f"{missing.uri}, which {self._objects.boundary} needs,") from None


class UpTo(io.RawIOBase, BinaryIO):
    """The first bytes of a source: nothing is fetched that isn't read."""

    def __init__(self, source: BinaryIO, size_bytes: int) -> None:
        self._source = source
        self._left = size_bytes

    def read(self, size: int = -1, /) -> bytes:
        """What is next, at most up to the end."""
        data = self._source.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data

    def close(self) -> None:
        """The source too."""
        self._source.close()
        super().close()


def _name(part: Slice) -> str:
    return f"{part.start} {part.entry.key}"


def _entries(found: FoundArchive) -> Iterator[FormatEntry]:
    for artifact in found.manifest.artifacts:
        yield from artifact.formats.values()


def _drain(source: Checked | CheckedBlocks) -> None:
    """To the end of a whole file, or of a part's last block: there it is compared."""
    while left := _DRAIN_BYTES if isinstance(source, Checked) else source.left:
        if not source.read(min(left, _DRAIN_BYTES)):
            return


class Sized(Protocol):
    """What a task reads: a slice of an object, and whatever else is known of it."""

    @property
    def part(self) -> Slice: ...


Part = TypeVar("Part", bound=Sized)


def gathered(parts: Iterable[Part], share: int) -> list[list[Part]]:
    """They, in their order, in tasks of about ``share`` bytes; a larger one is a task alone."""
    tasks: list[list[Part]] = []
    size = share
    for one in parts:
        if size >= share:
            tasks.append([])
            size = 0
        tasks[-1].append(one)
        size += one.part.size_bytes
    return tasks
