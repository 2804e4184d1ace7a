"""The location of an archive or a catalog: a directory, a file, or a URI of either.

A reader names the manifest's location; the manifest names its objects by keys
that are relative to the destination it was written to. An archive that was
copied elsewhere, under another name, can be read too.
"""

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from laredo_archive.errors import (
    ArchiveMissing,
    CatalogMissing,
    DestinationDenied,
    DestinationError,
)
from laredo_archive.manifest import catalog, object_keys, parser
from laredo_archive.manifest.catalog import CATALOG, CatalogEntry, DatabaseCatalog
from laredo_archive.manifest.merged import PartsFiles
from laredo_archive.manifest.model import Manifest
from laredo_archive.storage.access import S3Access
from laredo_archive.storage.destination import Destination
from laredo_archive.storage.local import LocalDestination
from laredo_archive.storage.s3 import bucket as s3

LISTED_FOR_ADVICE = 2000
"""Objects listed to find an archive near a location that has none: two requests' worth."""
LISTED_FOR_ARCHIVES = 100_000
"""Objects listed to find the archives of a destination that has no catalog."""


class FoundArchive(NamedTuple):
    """An archive that was found: its destination and its manifest."""

    #: Where its objects are.
    destination: Destination
    #: The manifest's key there.
    manifest_key: str
    manifest: Manifest
    #: Turns a manifest's key into the destination's.
    locate: Callable[[str], str]

    @property
    def key_prefix(self) -> str:
        """The prefix of the manifest's key and of every object's."""
        return self.manifest_key.removesuffix(object_keys.MANIFEST)

    @property
    def is_renamed_copy(self) -> bool:
        """True if the objects have other keys than the manifest names."""
        return self.locate is not as_it_is

    def parts_files(self) -> PartsFiles:
        """The files that list the parts of its merged diffs, none read yet."""
        return PartsFiles(self.destination, self.locate, self.key_prefix)


class ArchiveLocation(NamedTuple):
    """The location of a manifest, whether there is one or not.

    ``parts`` lead from the outermost location of ``destination_at`` (a file
    system, a bucket) to the manifest's directory; ``stem`` is a prefix of its name.
    """

    destination_at: Callable[[Sequence[str]], Destination]
    parts: tuple[str, ...]
    stem: str

    def split_at(self, depth: int) -> tuple[Destination, str]:
        """The destination ``depth`` levels above the manifest, and the key prefix there."""
        outer = len(self.parts) - depth
        prefix = "".join(f"{part}/" for part in self.parts[outer:])
        return self.destination_at(self.parts[:outer]), f"{prefix}{self.stem}"

    def depth_of(self, keys: Sequence[str]) -> int | None:
        """Number of levels above the manifest from which all ``keys`` have its key's prefix.

        The highest, if there are several; None if there is none, or no key.
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
    return _parsed(found.data, where, manifest_key.removesuffix(object_keys.MANIFEST))


@lru_cache(maxsize=2)
def _parsed(data: bytes, where: str, key_prefix: str) -> Manifest:
    """Parse a manifest; equal bytes are parsed once, as Spark reads it again for each query."""
    return parser.parse(data, where, key_prefix)


def _advice(destination: Destination) -> str:
    listed = _manifests(destination, LISTED_FOR_ADVICE)
    below = [key for key in listed if key.count("/") < 3]
    if not below:
        return "Give the directory (or URI) that holds one: <destination>/<key_prefix>"
    shown = ", ".join(_location_of(destination.uri_of(key)) for key in below[:10])
    return f"There is one at {shown}" if len(below) == 1 else f"There are some at {shown}"


def _location_of(manifest_uri: str) -> str:
    """The manifest's directory; the manifest itself if its name has a prefix."""
    directory = manifest_uri.removesuffix(object_keys.MANIFEST)
    return directory if directory.endswith("/") else manifest_uri


def find(uri: str, access: S3Access | None = None) -> FoundArchive:
    """Find the archive at a path or URI, of the manifest or of its directory.

    ``access`` is for S3; without it the environment sets that.

    :raises ArchiveMissing: if there is no manifest.
    :raises ManifestError: if it is damaged or newer than this program.
    :raises DestinationError: if the location can't be read, or has an unknown scheme.
    """
    return found(parse(uri, access))


def found(location: ArchiveLocation) -> FoundArchive:
    """Find the archive at a parsed location; raises like :func:`find`."""
    destination, stem = location.split_at(0)
    manifest_key = object_keys.manifest_key(stem)
    manifest = read_manifest(destination, manifest_key)
    if manifest.by_original:
        # Its objects are below the manifest. Its URIs aren't used: in a second destination's
        # manifest they lead to the first destination.
        return FoundArchive(destination, manifest_key, manifest, as_it_is)
    keys = [entry.key for entry in manifest.named()]
    depth = location.depth_of(keys)
    if depth is None:
        return FoundArchive(destination, manifest_key, manifest, _locator(destination, keys))
    root, prefix = location.split_at(depth)
    return FoundArchive(root, object_keys.manifest_key(prefix), manifest, as_it_is)


def absolute(uri: str) -> str:
    """Make a location absolute, for a process that has another working directory.

    :raises DestinationError: if a ``file://`` URI names another host.
    """
    if "://" in uri and not uri.startswith("file:"):
        return uri
    return os.path.abspath(Path(local_path(uri)).expanduser())  # noqa: PTH100  # not symbolic links


def local_path(uri: str) -> str:
    """The path that a path or a URI of the scheme ``file`` means: ``file:///a``, ``file:/a``.

    :raises DestinationError: if the URI names another host.
    """
    if not uri.startswith("file:/"):
        return uri
    # Not split as other URIs are: a ``#`` or ``?`` is part of a file's name.
    path = uri.removeprefix("file:")
    if path.startswith("//"):
        host, _, path = path[2:].partition("/")
        if host not in ("", "localhost"):
            raise DestinationError(
                uri,
                f"it names the host {host}, and only files of this machine can be read; write"
                f" file:///{host}/{path}, or a path",
            )
        path = f"/{path}"
    return unquote(path)


def parse(uri: str, access: S3Access | None = None) -> ArchiveLocation:
    """Parse a path or URI, without a request.

    :raises DestinationError: if it has an unknown scheme, or another host.
    """
    scheme = urlsplit(uri).scheme if "://" in uri else ""
    if f"{scheme}://" in s3.SCHEMES:
        return _parse_s3(uri, access or S3Access())
    if scheme and scheme != "file":
        raise DestinationError(
            uri,
            f"{scheme}:// isn't known here; give a directory, or a URI that begins with file://"
            " or s3://",
        )
    return _parse_path(local_path(uri))


def _parse_path(path: str) -> ArchiveLocation:
    directory, stem = _without_manifest(path)
    parts = Path(directory or ".").expanduser().resolve().parts[1:]
    return ArchiveLocation(lambda outer: LocalDestination(Path("/", *outer)), parts, stem)


def _parse_s3(uri: str, access: S3Access) -> ArchiveLocation:
    holder, stem = _without_manifest(uri)
    location = s3.parse(holder)
    parts = tuple(location.prefix.removesuffix("/").split("/")) if location.prefix else ()
    return ArchiveLocation(lambda outer: access.destination(location.bucket, outer), parts, stem)


def _without_manifest(path: str) -> tuple[str, str]:
    """Directory and name prefix of the archive whose manifest ``path`` names."""
    if not path.endswith(object_keys.MANIFEST):
        return path, ""
    holder, slash, name = path.rpartition("/")
    return holder or slash, name.removesuffix(object_keys.MANIFEST)


def _locator(destination: Destination, keys: list[str]) -> Callable[[str], str]:
    """Function that drops leading directories of keys, as many as it takes to find an object."""
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


# Finds the catalog of a destination, and the archives that it names.


class FoundCatalog(NamedTuple):
    """A catalog that was found, and where."""

    #: Its directory, with ``/`` at the end; the archives' prefixes are relative to it.
    base: str
    #: The catalog's own URI.
    uri: str
    #: Its content.
    catalog: DatabaseCatalog

    def uri_of(self, prefix: str) -> str:
        """URI of the archive at ``prefix``."""
        return f"{self.base}{prefix}"


def find_catalog(uri: str, access: S3Access | None = None) -> FoundCatalog:
    """Find the catalog at a path or URI, of it or of the destination that holds it.

    :raises CatalogMissing: if there is none.
    :raises CatalogUnusable: if it is damaged or newer than this program.
    :raises DestinationError: if the location can't be read, or has an unknown scheme.
    """
    base = absolute(uri.removesuffix(CATALOG) or ".").rstrip("/") + "/"
    destination, _ = parse(base, access).split_at(0)
    where = destination.uri_of(CATALOG)
    found = destination.get(CATALOG)
    if found is None:
        raise CatalogMissing(base)
    return FoundCatalog(base, where, catalog.parse(found.data, where))


def catalog_of_archives(uri: str, access: S3Access | None = None) -> FoundCatalog:
    """A catalog of the archives right below a path or URI, made from their manifests.

    It has no common boundaries. It is empty if this process may not list objects.

    :raises DestinationError: if the location can't be read.
    :raises ManifestError: if a manifest is damaged or newer than this program.
    """
    base = absolute(uri or ".").rstrip("/") + "/"
    destination, _ = parse(base, access).split_at(0)
    archives = {}
    keys = _manifests(destination, LISTED_FOR_ARCHIVES)
    for key in (key for key in keys if key.count("/") == 1):
        manifest = read_manifest(destination, key)
        last = manifest.last
        archives[key.removesuffix(object_keys.MANIFEST)] = CatalogEntry(
            manifest.table,
            group="",
            columns=(last and last.columns) or (),
            key_fields=(last and last.key_fields) or (),
        )
    found = DatabaseCatalog(datetime.now(UTC), archives)
    return FoundCatalog(base, base, found)


def _manifests(destination: Destination, most: int) -> list[str]:
    """Keys of manifests among the first ``most`` objects of a destination."""
    try:
        listed = list(islice(destination.list(""), most))
    except DestinationDenied:
        return []  # a reader needn't be allowed to list
    keys = (info.key for info in listed)
    return sorted(key for key in keys if key.endswith(object_keys.MANIFEST))
