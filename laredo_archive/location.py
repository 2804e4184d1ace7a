"""Where an archive is, as a reader says it: a directory, a manifest, or a URI of either.

A reader names the place of the manifest; the manifest names its objects by keys
that are relative to the destination it was written to. An archive that was
copied elsewhere, under another name, is read all the same.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from laredo_archive import manifest_parser, naming
from laredo_archive.destination import Destination
from laredo_archive.errors import ArchiveMissing, DestinationError
from laredo_archive.local import LocalDestination
from laredo_archive.manifest import Manifest


class Found(NamedTuple):
    """An archive: its destination, its manifest's key, and where in it a manifest's keys are."""

    destination: Destination
    manifest_key: str
    manifest: Manifest
    locate: Callable[[str], str]

    @property
    def key_prefix(self) -> str:
        """What stands before ``manifest.json``, and before every object's name."""
        return self.manifest_key.removesuffix(naming.MANIFEST)

    @property
    def is_renamed_copy(self) -> bool:
        """Whether the objects have other keys than the manifest says."""
        return self.locate is not as_it_is


def read_manifest(destination: Destination, manifest_key: str) -> Manifest:
    """The manifest, as it is now.

    :raises ArchiveMissing: if there is none.
    :raises ManifestError: if it is damaged or newer than this program.
    """
    where = destination.uri_of(manifest_key)
    found = destination.get(manifest_key)
    if found is None:
        raise ArchiveMissing(where.removesuffix(naming.MANIFEST), _advice(destination))
    return manifest_parser.parse(found.data, where)


def _advice(destination: Destination) -> str:
    below = sorted(
        info.key
        for info in destination.list("")
        if info.key.endswith(naming.MANIFEST) and info.key.count("/") < 3
    )
    if not below:
        return "Give the directory (or URI) that holds one: <destination>/<key_prefix>"
    shown = ", ".join(destination.uri_of(key).removesuffix(naming.MANIFEST) for key in below[:10])
    return f"There is one at {shown}" if len(below) == 1 else f"There are some at {shown}"


def find(place: str) -> Found:
    """The archive at ``place``: a path or URI, of the manifest or of what holds it.

    :raises ArchiveMissing: if there is no manifest.
    :raises ManifestError: if it is damaged or newer than this program.
    :raises DestinationError: if the place can't be read, or isn't one that is known here.
    """
    directory, stem = _parts(_path_of(place))
    destination = LocalDestination(directory)
    manifest_key = f"{stem}{naming.MANIFEST}"
    manifest = read_manifest(destination, manifest_key)
    keys = [entry.key for entry in manifest.named()]
    prefix = _own_prefix(Path(directory).resolve(), stem, keys)
    if prefix is not None:
        root = Path(directory).resolve()
        for _ in Path(prefix).parts if prefix.endswith("/") else Path(prefix).parts[:-1]:
            root = root.parent
        return Found(LocalDestination(root), f"{prefix}{naming.MANIFEST}", manifest, as_it_is)
    return Found(destination, manifest_key, manifest, _locator(destination, keys))


def _path_of(place: str) -> str:
    scheme = urlsplit(place).scheme
    if scheme == "file":
        return unquote(urlsplit(place).path)
    if scheme and "://" in place:
        raise DestinationError(
            place, f"{scheme}:// isn't known here; give a directory or a file:// URI"
        )
    return place


def _parts(path: str) -> tuple[str, str]:
    """The directory, and what stands in it in front of ``manifest.json``."""
    if path.endswith(naming.MANIFEST):
        directory, _, name = path.rpartition("/")
        return directory or ("/" if path.startswith("/") else "."), name[: -len(naming.MANIFEST)]
    return path or ".", ""


def _own_prefix(directory: Path, stem: str, keys: list[str]) -> str | None:
    """The longest end of the manifest's own path that all keys begin with."""
    if not keys:
        return None
    parts = directory.parts[1:]
    for count in range(len(parts), -1, -1):
        prefix = "/".join([*parts[len(parts) - count :], stem])
        if prefix and all(key.startswith(prefix) for key in keys):
            return prefix
    return None


def _locator(destination: Destination, keys: list[str]) -> Callable[[str], str]:
    """Leaves out as many leading directories of the keys as it takes to find an object."""
    for key in keys[:10]:
        for count in range(key.count("/") + 1):
            if destination.head("/".join(key.split("/")[count:])) is not None:
                return lambda key: "/".join(key.split("/")[count:])
    return as_it_is


def as_it_is(key: str) -> str:
    """The key of an object in an archive that is where it was written."""
    return key
