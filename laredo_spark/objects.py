"""An archive's objects as tasks read them: checked, and with one message if they can't be."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from laredo_archive import location
from laredo_archive.arrow.errors import ValueUnfit
from laredo_archive.artifact_file import MISSING, Checked
from laredo_archive.codec import Source
from laredo_archive.destination import Destination
from laredo_archive.errors import ArtifactDamaged, ArtifactMissing
from laredo_archive.location import Found
from laredo_archive.manifest import FormatEntry
from laredo_archive.ranges import Slice
from laredo_spark.errors import BoundaryGone, TypesUnfit
from laredo_spark.options import ReadOptions

_DRAIN_BYTES = 1 << 20
_CURE = "Check it with laredo-archive verify; restore it from another destination, or read that one"


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
        cls, asked: ReadOptions, found: Found, boundary: object, inferred: bool = False
    ) -> "Objects":
        """Those of an archive that was found."""
        depth = found.key_prefix.count("/")
        return cls(asked, depth, found.locate, str(boundary), inferred)

    def opener(self) -> Callable[[Slice], AbstractContextManager[Source]]:
        """What opens slices, one after the other."""
        place = location.parse(self.asked.path, self.asked.access())
        destination, _ = place.seen_from(self.depth)
        return lambda part: self._open_slice(destination, part)

    @contextmanager
    def _open_slice(self, destination: Destination, part: Slice) -> Iterator[Source]:
        """An artifact's bytes from the slice's start on; of a whole file the sha256 is checked.

        :raises ArtifactDamaged: if they aren't what the entry says, or can't be parsed.
        :raises BoundaryGone: if the object isn't there any more, nor its archive's boundary.
        """
        uri = destination.uri_of(self.locate(part.entry.key))
        with closing(self._opened(destination, part)) as source:
            checked = Checked(source, part.entry, uri) if part.whole else source
            try:
                yield checked
            except (ValueError, ValueUnfit) as wrong:
                # A damaged file is told by its sha256 rather than by where it first hurt.
                _drain(checked, part)
                if self.inferred:
                    raise TypesUnfit(uri, str(wrong), self.asked.infer_rows) from None
                raise ArtifactDamaged(uri, f"{wrong}. {_CURE}") from None
            except OSError as wrong:
                raise ArtifactDamaged(uri, f"can't be read: {wrong}") from None
            _drain(checked, part)

    def _opened(self, destination: Destination, part: Slice) -> BinaryIO:
        try:
            return destination.open(self.locate(part.entry.key), part.start)
        except ArtifactMissing as missing:
            return self._placed_anew(missing, part)

    def _placed_anew(self, missing: ArtifactMissing, part: Slice) -> BinaryIO:
        """The same bytes under the name that a later manifest has for them."""
        found = location.find(self.asked.path, self.asked.access())
        where = found.destination.uri_of(found.manifest_key)
        for entry in _entries(found):
            if entry.same_content(part.entry) and entry.sha256 is not None:
                if entry.key == part.entry.key:
                    raise ArtifactMissing(missing.uri, MISSING) from None
                return found.destination.open(found.locate(entry.key), part.start)
        raise BoundaryGone(where, f"{missing.uri}, which {self.boundary} needs,") from None


def _entries(found: Found) -> Iterator[FormatEntry]:
    for artifact in found.manifest.artifacts:
        yield from artifact.formats.values()


def _drain(source: Source, part: Slice) -> None:
    """To the end of a whole file, where it is compared with its entry."""
    while part.whole and source.read(_DRAIN_BYTES):
        pass
