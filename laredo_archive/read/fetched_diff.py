"""Fetches a diff whole and checks it before the first change is read.

``artifact_reader`` checks an object while it is read, which is too late for a reader that passes
changes on immediately. Here the object goes into a temporary file first.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import IO

from laredo_archive import codec
from laredo_archive.errors import ArtifactDamaged, FormatUnknown, NoRoomToFetch
from laredo_archive.manifest.model import Artifact, FormatEntry
from laredo_archive.read.location import FoundArchive
from laredo_archive.read.objects import Checked
from laredo_model.column import Column
from laredo_model.line import Action, Change

MEMORY_BYTES = 256 << 10
"""A smaller object never touches the disk."""

_READ_BYTES = 1 << 20


def choose(
    found: FoundArchive, artifact: Artifact, formats: Sequence[str]
) -> tuple[str, FormatEntry]:
    """The first of ``formats`` in which the artifact exists, and its entry.

    :raises FormatUnknown: if it exists in none of them.
    """
    for candidate in formats:
        entry = artifact.formats.get(candidate)
        if entry is not None and candidate in codec.DIFF_FORMATS:
            return candidate, entry
    entries = list(artifact.formats.values())
    uri = _uri(found, entries[0]) if entries else found.destination.uri
    raise FormatUnknown(uri, sorted(artifact.formats), list(formats))


def _uri(found: FoundArchive, entry: FormatEntry) -> str:
    """The URI that the object is read from; in a copy of the archive it isn't ``entry.uri``."""
    return found.destination.uri_of(found.locate(entry.key))


def fetch(found: FoundArchive, entry: FormatEntry, directory: Path | None) -> IO[bytes]:
    """The object, whole and checked, in a temporary file in ``directory``; the caller closes it.

    :raises ArtifactMissing: if it isn't there.
    :raises ArtifactDamaged: if it differs from its entry.
    :raises DestinationError: if it can't be read.
    :raises NoRoomToFetch: if there is no room for it.
    """
    uri = _uri(found, entry)
    file: IO[bytes] = tempfile.SpooledTemporaryFile(  # noqa: SIM115  # the caller closes it
        MEMORY_BYTES, dir=None if directory is None else str(directory)
    )
    try:
        with closing(found.destination.open(found.locate(entry.key))) as source:
            checked = Checked(source, entry, uri)
            while piece := checked.read(_READ_BYTES):
                _put(partial(file.write, piece), uri, directory)
        # A full disk may show only where the last buffered bytes are written.
        _put(partial(file.seek, 0), uri, directory)
    except BaseException:
        with suppress(OSError):  # closing writes the buffered bytes once more
            file.close()
        raise
    return file


def _put(write: Callable[[], object], uri: str, directory: Path | None) -> None:
    try:
        write()
    except OSError as full:
        where = directory or tempfile.gettempdir()
        raise NoRoomToFetch(uri, str(where), full) from full


def changes(
    found: FoundArchive,
    artifact: Artifact,
    columns: Sequence[Column] | None,
    formats: Sequence[str],
    directory: Path | None,
) -> Iterator[Change]:
    """A diff's changes, the TRUNCATE first; raises like :func:`fetch`, before the first.

    :raises FormatUnknown: if it is there in none of ``formats``.
    :raises ArtifactDamaged: also where the right bytes are no diff, while they are read.
    """
    format_id, entry = choose(found, artifact, formats)
    with closing(fetch(found, entry, directory)) as file:
        count = 0
        try:
            for change in codec.read_diff(format_id, columns, file):
                count += change.action is not Action.TRUNCATE
                yield change
        except ValueError as wrong:
            raise ArtifactDamaged(_uri(found, entry), str(wrong)) from wrong
    if count != artifact.change_count:
        raise ArtifactDamaged(
            _uri(found, entry), f"it has {count} changes, the manifest has {artifact.change_count}"
        )
