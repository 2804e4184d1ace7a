"""Where an archive is, as a reader says it: a directory, a manifest, or a URI of either.

A reader names the place of the manifest; the manifest names its objects by keys
that are relative to the destination it was written to. An archive that was
copied elsewhere, under another name, is read all the same.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from laredo_archive.errors import ArchiveMissing, DestinationDenied, DestinationError
from laredo_archive.manifest import object_keys, parser
from laredo_archive.manifest.model import Manifest
from laredo_archive.storage.access import S3Access
from laredo_archive.storage.destination import Destination
from laredo_archive.storage.local.destination import LocalDestination
from laredo_archive.storage.s3 import bucket as s3

LISTED_FOR_ADVICE = 2000
"""Objects looked at to find an archive near the place where none is: two requests' worth."""


class FoundArchive(NamedTuple):
    """An archive: its destination, its manifest's key, and where in it a manifest's keys are."""

    destination: Destination
    manifest_key: str
    manifest: Manifest
    locate: Callable[[str], str]

    @property
    def key_prefix(self) -> str:
        """What stands before ``manifest.json``, and before every object's name."""
        return self.manifest_key.removesuffix(object_keys.MANIFEST)

    @property
    def is_renamed_copy(self) -> bool:
        """Whether the objects have other keys than the manifest says."""
        return self.locate is not as_it_is


class Place(NamedTuple):
    """Where a manifest is to be, whether there is one or not.

    ``parts`` lead from the outermost place that ``destination_at`` knows (a file
    system, a bucket) to what holds the manifest; ``stem`` is what its name begins with.
    """

    destination_at: Callable[[Sequence[str]], Destination]
    parts: tuple[str, ...]
    stem: str

    def seen_from(self, depth: int) -> tuple[Destination, str]:
        """The destination ``depth`` levels above the manifest, and the key prefix there."""
        outer = len(self.parts) - depth
        prefix = "".join(f"{part}/" for part in self.parts[outer:])
        return self.destination_at(self.parts[:outer]), f"{prefix}{self.stem}"

    def depth_of(self, keys: Sequence[str]) -> int | None:
        """From how many levels above it all ``keys`` begin as the manifest's own key does.

        The most, if there are several; None if there is none, or nothing to tell it by.
        """
        for depth in range(len(self.parts), -1, -1):
            prefix = "/".join([*self.parts[len(self.parts) - depth :], self.stem])
            if keys and prefix and all(key.startswith(prefix) for key in keys):
                return depth
        return None


def read_manifest(destination: Destination, manifest_key: str) -> Manifest:
    """The manifest, as it is now.

    :raises ArchiveMissing: if there is none.
    :raises ManifestError: if it is damaged or newer than this program.
    """
    where = destination.uri_of(manifest_key)
    found = destination.get(manifest_key)
    if found is None:
        raise ArchiveMissing(where.removesuffix(object_keys.MANIFEST), _advice(destination))
    return parser.parse(found.data, where)


def _advice(destination: Destination) -> str:
    try:
        listed = list(islice(destination.list(""), LISTED_FOR_ADVICE))
    except DestinationDenied:
        listed = []  # who may read the objects needn't be allowed to list them
    below = sorted(
        info.key
        for info in listed
        if info.key.endswith(object_keys.MANIFEST) and info.key.count("/") < 3
    )
    if not below:
        return "Give the directory (or URI) that holds one: <destination>/<key_prefix>"
    shown = ", ".join(_place_of(destination.uri_of(key)) for key in below[:10])
    return f"There is one at {shown}" if len(below) == 1 else f"There are some at {shown}"


def _place_of(manifest_uri: str) -> str:
    """The directory that holds it; where its own name begins with a prefix, itself."""
    directory = manifest_uri.removesuffix(object_keys.MANIFEST)
    return directory if directory.endswith("/") else manifest_uri


def find(place: str, access: S3Access | None = None) -> FoundArchive:
    """The archive at ``place``: a path or URI, of the manifest or of what holds it.

    ``access`` is how S3 is reached; without it, as the environment says.

    :raises ArchiveMissing: if there is no manifest.
    :raises ManifestError: if it is damaged or newer than this program.
    :raises DestinationError: if the place can't be read, or isn't one that is known here.
    """
    return found(parse(place, access))


def found(said: Place) -> FoundArchive:
    """The archive at a place that was parsed; raises like :func:`find`."""
    destination, stem = said.seen_from(0)
    manifest_key = object_keys.manifest_key(stem)
    manifest = read_manifest(destination, manifest_key)
    keys = [entry.key for entry in manifest.named()]
    depth = said.depth_of(keys)
    if depth is None:
        return FoundArchive(destination, manifest_key, manifest, _locator(destination, keys))
    root, prefix = said.seen_from(depth)
    return FoundArchive(root, object_keys.manifest_key(prefix), manifest, as_it_is)


def parse(place: str, access: S3Access | None = None) -> Place:
    """What ``place`` says, without looking there.

    :raises DestinationError: if it isn't a kind of place that is known here.
    """
    scheme = urlsplit(place).scheme if "://" in place else ""
    if f"{scheme}://" in s3.SCHEMES:
        return _parse_s3(place, access or S3Access())
    if scheme == "file":
        return _parse_path(unquote(urlsplit(place).path))
    if scheme:
        raise DestinationError(
            place,
            f"{scheme}:// isn't known here; give a directory, or a URI that begins with file://"
            " or s3://",
        )
    return _parse_path(place)


def _parse_path(path: str) -> Place:
    directory, stem = _without_manifest(path)
    parts = Path(directory or ".").expanduser().resolve().parts[1:]
    return Place(lambda outer: LocalDestination(Path("/", *outer)), parts, stem)


def _parse_s3(uri: str, access: S3Access) -> Place:
    holder, stem = _without_manifest(uri)
    said = s3.parse(holder)
    parts = tuple(said.prefix.removesuffix("/").split("/")) if said.prefix else ()
    return Place(lambda outer: access.destination(said.bucket, outer), parts, stem)


def _without_manifest(path: str) -> tuple[str, str]:
    """What holds the manifest, and what its name begins with, if ``path`` is a manifest's."""
    if not path.endswith(object_keys.MANIFEST):
        return path, ""
    holder, slash, name = path.rpartition("/")
    return holder or slash, name.removesuffix(object_keys.MANIFEST)


def _locator(destination: Destination, keys: list[str]) -> Callable[[str], str]:
    """Leaves out as many leading directories of the keys as it takes to find an object."""
    for key in keys[:10]:
        for count in range(key.count("/") + 1):
            if destination.head(_without_leading(count, key)) is not None:
                return partial(_without_leading, count) if count else as_it_is
    return as_it_is


def _without_leading(count: int, key: str) -> str:
    return "/".join(key.split("/")[count:])


def as_it_is(key: str) -> str:
    """The key of an object in an archive that is where it was written."""
    return key
