"""Object keys: the names that writers give, and which names are theirs.

A reader goes by the manifest's entries and takes any name. A program that deletes goes by the names
here: an object with another form of name is never ours to delete, whatever a manifest names.
"""

import re
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from laredo_archive.manifest.model import Artifact, ArtifactKind
from laredo_archive.storage.destination import is_plain
from laredo_model import position as positions
from laredo_model.position import Position

MANIFEST = "manifest.json"
EXTENSIONS = {
    "jsonl": ".jsonl",
    "protobuf": ".pb",
    "parquet": ".parquet",
    "jsonl.zst": ".jsonl.zst",
    "protobuf.zst": ".pb.zst",
}
PARTS = "parts"
PARTS_EXTENSION = ".json.gz"

_NO_LETTERS = re.compile(r"[^0-9A-Za-z]+")
_POSITION = r"[0-9A-F]{1,8}_[0-9A-F]{1,8}"
_RENAMED = r"(?:-[0-9A-Za-z]+-[0-9]+)*"  # NewNames; of a copy of a copy more than once
_OWN = re.compile(
    r"epoch=[0-9]{1,19}/(?:"
    rf"(?:{ArtifactKind.SNAPSHOT}-{_POSITION}|{ArtifactKind.DIFF}-{_POSITION}-{_POSITION}){_RENAMED}"
    rf"(?:{'|'.join(map(re.escape, EXTENSIONS.values()))})"
    rf"|{PARTS}-{_POSITION}-{_POSITION}{_RENAMED}{re.escape(PARTS_EXTENSION)})"
)
_SPAN = re.compile(
    rf"epoch=([0-9]{{1,19}})/(?P<kind>{ArtifactKind.DIFF}|{PARTS})-({_POSITION})-({_POSITION})"
)


def default_prefix(table: str) -> str:
    """Default key prefix of the archive of ``table``: its name, or with its schema if that is a
    pattern.

    It is the default of all programs; a configuration's ``key_prefix`` replaces it.
    """
    return f"{table}/"


def directory_prefix(key_prefix: str) -> str:
    """``key_prefix`` as a directory: ``users`` and ``users/`` are both ``users/``.

    So it never covers its neighbours (``users_eu/``). Empty stays empty: the destination itself.

    :raises ValueError: if it isn't a plain relative path.
    """
    path = key_prefix.removesuffix("/")
    if key_prefix and not is_plain(path):
        raise ValueError(f'"{key_prefix}" leads out of the destination, or isn\'t a plain path')
    return f"{path}/" if path else ""


def is_own(key: str, key_prefix: str) -> bool:
    """True if ``key`` has the form that writers give an artifact's object below ``key_prefix``."""
    return key.startswith(key_prefix) and bool(_OWN.fullmatch(key, len(key_prefix)))


def is_begun(key: str, key_prefix: str) -> bool:
    """True if an upload of ``key`` can be a writer's: an artifact's object, or the manifest."""
    return key == manifest_key(key_prefix) or is_own(key, key_prefix)


def objects_prefix(key_prefix: str) -> str:
    """Common prefix of all artifacts' objects: nothing else needs to be listed."""
    return f"{key_prefix}epoch="


def manifest_key(key_prefix: str) -> str:
    """The manifest's key below ``key_prefix``."""
    return f"{key_prefix}{MANIFEST}"


def snapshot_key(key_prefix: str, epoch: int, position: Position, format_id: str) -> str:
    """A base's key: epoch=N/snapshot-<pos>.<ext>."""
    name = f"{ArtifactKind.SNAPSHOT}-{positions.object_name(position)}"
    return f"{key_prefix}epoch={epoch}/{name}{extension(format_id)}"


def diff_key(
    key_prefix: str, epoch: int, from_position: Position, to_position: Position, format_id: str
) -> str:
    """A diff's key: epoch=N/diff-<from>-<to>.<ext>."""
    window = f"{positions.object_name(from_position)}-{positions.object_name(to_position)}"
    return f"{key_prefix}epoch={epoch}/{ArtifactKind.DIFF}-{window}{extension(format_id)}"


def parts_key(key_prefix: str, epoch: int, from_position: Position, to_position: Position) -> str:
    """The key of a file that lists a merged diff's parts: epoch=N/parts-<from>-<to>.json.gz."""
    window = f"{positions.object_name(from_position)}-{positions.object_name(to_position)}"
    return f"{key_prefix}epoch={epoch}/{PARTS}-{window}{PARTS_EXTENSION}"


class Span(NamedTuple):
    """Positions and epoch in the name of a diff, or of a file of parts."""

    #: The epoch whose folder it is in.
    epoch: int
    #: Whether it is a file of parts.
    lists_parts: bool
    #: Where it begins.
    start: Position
    #: Where it ends.
    end: Position

    def covers(self, other: "Span") -> bool:
        """True if ``other`` is within its positions, and isn't of a later epoch."""
        return other.epoch <= self.epoch and self.start <= other.start and other.end <= self.end


def span_of(key: str, key_prefix: str) -> Span | None:
    """Span in an object's name; None if the name is a base's, or not a writer's."""
    found = _SPAN.match(key, len(key_prefix)) if is_own(key, key_prefix) else None
    if found is None:
        return None
    epoch, kind, start, end = found.groups()
    return Span(int(epoch), kind == PARTS, _position_in_name(start), _position_in_name(end))


def _position_in_name(text: str) -> Position:
    return positions.parse(text.replace("_", "/"))


def is_in_folder(key: str, key_prefix: str, epoch: int) -> bool:
    """True if ``key`` is in the folder of ``epoch``.

    After a re-base an artifact's object may be in the former epoch's folder.
    """
    return key.startswith(f"{key_prefix}epoch={epoch}/")


def artifact_key(key_prefix: str, artifact: Artifact, format_id: str) -> str:
    """The key that a writer gives ``artifact`` in this format."""
    if artifact.from_position is None:
        return snapshot_key(key_prefix, artifact.epoch, artifact.to_position, format_id)
    start, end = artifact.from_position, artifact.to_position
    return diff_key(key_prefix, artifact.epoch, start, end, format_id)


def extension(format_id: str) -> str:
    """File extension of a format.

    A manifest may call a format anything: the extension of an unknown one is made of its letters.
    """
    return EXTENSIONS.get(format_id) or f".{_NO_LETTERS.sub('_', format_id)}"


class NewNames:
    """Gives names that were never used before, for objects whose own name is taken.

    ``writer_id`` is random per process, and a number is given out once.
    """

    def __init__(self, writer_id: str) -> None:
        self._writer_id = writer_id
        self._numbers: Iterator[int] = count(1)

    def instead_of(self, key: str) -> str:
        """``epoch=2/diff-0_1-0_2.jsonl`` -> ``epoch=2/diff-0_1-0_2-<writer_id>-1.jsonl``."""
        directory, slash, name = key.rpartition("/")
        stem, dot, extension = name.partition(".")
        return f"{directory}{slash}{stem}-{self._writer_id}-{next(self._numbers)}{dot}{extension}"
