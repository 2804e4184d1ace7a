"""Object keys. A convention only: where an object is, its manifest entry says."""

from collections.abc import Iterator
from itertools import count

from laredo_archive.manifest import Kind
from laredo_model import position as positions
from laredo_model.position import Position

MANIFEST = "manifest.json"
EXTENSIONS = {"jsonl": ".jsonl", "protobuf": ".pb", "parquet": ".parquet"}


def default_prefix(table: str) -> str:
    """Where a table's archive is in a destination unless the configuration says otherwise."""
    return f"{table}/"


def manifest_key(key_prefix: str) -> str:
    """The manifest's key below ``key_prefix``."""
    return f"{key_prefix}{MANIFEST}"


def snapshot_key(key_prefix: str, epoch: int, position: Position, format_id: str) -> str:
    """A base's key: epoch=N/snapshot-<pos>.<ext>."""
    name = f"{Kind.SNAPSHOT}-{positions.object_name(position)}"
    return f"{key_prefix}epoch={epoch}/{name}{_extension(format_id)}"


def diff_key(
    key_prefix: str, epoch: int, from_position: Position, to_position: Position, format_id: str
) -> str:
    """A diff's key: epoch=N/diff-<from>-<to>.<ext>."""
    window = f"{positions.object_name(from_position)}-{positions.object_name(to_position)}"
    return f"{key_prefix}epoch={epoch}/{Kind.DIFF}-{window}{_extension(format_id)}"


def _extension(format_id: str) -> str:
    return EXTENSIONS.get(format_id, f".{format_id}")


class NewNames:
    """Names that nobody has used before, for objects whose own name is taken.

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
