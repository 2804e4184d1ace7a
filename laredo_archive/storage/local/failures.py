"""Converts OSErrors into a destination's errors, with the path, the reason and the cure."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from laredo_archive.errors import (
    CommitStateUnknown,
    DestinationDenied,
    DestinationFull,
    DestinationReadOnly,
    DestinationUnavailable,
)
from laredo_archive.storage.local.tree import uri_of


@contextmanager
def unclear_if_failing(path: Path) -> Iterator[None]:
    """:raises CommitStateUnknown: if the directory of what was written can't be synced."""
    try:
        yield
    except OSError as failure:
        raise CommitStateUnknown(
            uri_of(path), f"it was written, but its directory couldn't be synced: {failure}"
        ) from failure


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """:raises DestinationUnavailable: instead of an OSError; ``path`` names the file."""
    try:
        yield
    except OSError as failure:
        raise _explanation(path, failure) from failure


def _explanation(path: Path, failure: OSError) -> DestinationUnavailable:
    uri, at = uri_of(path), path
    if isinstance(failure.filename, str) and failure.filename.startswith("/"):
        at = Path(failure.filename)
    if failure.errno in (errno.ENOSPC, errno.EDQUOT):
        return DestinationFull(
            uri,
            f"no space left ({failure.strerror}) at {at}; free some, enlarge the volume or raise"
            " the quota",
        )
    if failure.errno == errno.EROFS:
        return DestinationReadOnly(
            uri, f"the file system at {at} is read-only; mount it read-write"
        )
    if failure.errno in (errno.EACCES, errno.EPERM):
        return DestinationDenied(
            uri,
            f"{failure.strerror} at {at}; let uid {os.getuid()} read and write there, on a file"
            " system that has hard links",
        )
    return DestinationUnavailable(uri, f"{failure.strerror or failure} at {at}")
