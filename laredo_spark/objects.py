"""Objects of an archive, as Spark's tasks open them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from laredo_archive.arrow.slices import SliceOpener
from laredo_archive.manifest.key_ranges import ObjectSlice
from laredo_archive.read import location
from laredo_archive.read.location import FoundArchive
from laredo_archive.storage.destination import Destination
from laredo_spark.errors import BoundaryGone, TypesUnfit
from laredo_spark.options import ReadOptions


@dataclass(frozen=True)
class Objects:
    """The location of a read's objects; plain values, so that tasks needn't read the manifest."""

    #: The options of the read.
    asked: ReadOptions
    #: Number of levels from its destination down to the manifest.
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

    def opener(self) -> SliceOpener:
        """An opener of slices, for one task."""
        archive = location.parse(self.asked.path, self.asked.access())
        destination, _ = archive.split_at(self.depth)
        return _TaskOpener(self, destination)


class _TaskOpener(SliceOpener):
    """An opener whose errors name the boundary of the DataFrame."""

    def __init__(self, objects: Objects, destination: Destination) -> None:
        asked = objects.asked
        super().__init__(
            destination, objects.locate, lambda: location.find(asked.path, asked.access())
        )
        self._objects = objects

    def unfit(self, uri: str, wrong: Exception) -> Exception:
        """TypesUnfit, if the columns were inferred from other rows."""
        if self._objects.inferred:
            return TypesUnfit(uri, str(wrong), self._objects.asked.infer_rows)
        return super().unfit(uri, wrong)

    def gone(self, uri: str, manifest_uri: str) -> Exception:
        """BoundaryGone: the boundary has left the archive with the object."""
        return BoundaryGone(manifest_uri, f"{uri}, which {self._objects.boundary} needs,")


class Sized(Protocol):
    """A slice of an object, with more that a task knows of it."""

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
