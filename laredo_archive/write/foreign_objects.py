"""Foreign objects: what a location holds before its first claim, others' or a lost archive's."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import structlog

from laredo_archive.errors import DestinationDenied, DestinationError, ManifestError, PrefixMeant
from laredo_archive.manifest import object_keys, parser
from laredo_archive.storage.destination import Destination

log = structlog.get_logger(__name__)

LISTED = 2000
"""Objects listed at most: two requests' worth."""


@dataclass(frozen=True)
class Neighbours:
    """The objects below a key prefix without a manifest, among the first LISTED."""

    #: Objects of other programs, which are left alone for good.
    others: tuple[str, ...]
    #: Objects with names that a writer gives; a collector retires and later deletes them.
    orphans: tuple[str, ...]
    #: Whether there are more than LISTED.
    more: bool

    def __str__(self) -> str:
        return "; ".join(self._sentences())

    def __bool__(self) -> bool:
        return bool(self.others or self.orphans)

    def _sentences(self) -> Iterator[str]:
        least = "at least " if self.more else ""
        if self.others:
            yield (
                f"{least}{len(self.others)} objects of others, such as {self.others[0]}, which stay"
                " as they are"
            )
        if self.orphans:
            yield (
                f"{least}{len(self.orphans)} objects of an archive without a manifest, such as"
                f" {self.orphans[0]}, which the collector will delete: move them elsewhere if"
                " they are still needed"
            )


def objects_at(destination: Destination, key_prefix: str) -> Neighbours:
    """The objects below ``key_prefix``.

    :raises DestinationError: if it can't be listed.
    """
    listed = list(islice(destination.list(key_prefix), LISTED + 1))
    keys = [info.key for info in listed if info.key != object_keys.manifest_key(key_prefix)]
    own = {key for key in keys if object_keys.is_own(key, key_prefix)}
    return Neighbours(
        tuple(key for key in keys if key not in own),
        tuple(key for key in keys if key in own),
        len(listed) > LISTED,
    )


def report(destination: Destination, key_prefix: str) -> None:
    """Log the foreign objects once, when the location is claimed for the first time."""
    uri = destination.uri_of(object_keys.manifest_key(key_prefix))
    try:
        found = objects_at(destination, key_prefix)
    except DestinationError as failure:
        # A writer needn't be allowed to list.
        log.warning("foreign objects not listed", uri=uri, failure=str(failure))
        return
    if found:
        log.warning("foreign objects found", uri=uri, found=str(found))


def refuse_other_prefix(destination: Destination, table: str, key_prefix: str) -> None:
    """Check that ``key_prefix`` without its ``/`` isn't where the table's archive is.

    A prefix was once taken verbatim: ``users`` gave ``usersmanifest.json``.

    :raises PrefixMeant: if it is.
    :raises DestinationUnavailable: if that can't be read now.
    """
    before = key_prefix.removesuffix("/")
    if not before:
        return
    key = object_keys.manifest_key(before)
    try:
        found = destination.get(key)
    except DestinationDenied:
        return  # a writer that may not read there hasn't written there
    if found is None:
        return
    uri = destination.uri_of(key)
    try:
        manifest = parser.parse(found.data, uri)
    except ManifestError:
        return  # another program's file
    if manifest.table == table:
        raise PrefixMeant(uri, destination.uri_of(f"{before}/x").removesuffix("x"))
