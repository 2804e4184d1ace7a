"""Members of an artifact's entry: its objects, and the head that a base follows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from laredo_archive.manifest.unnamed_objects import with_unknown
from laredo_model import position as positions
from laredo_model.position import History, Position


@dataclass(frozen=True)
class FormatEntry:
    """One object that holds an artifact in one format."""

    #: The object's URI.
    uri: str
    #: Its size.
    size_bytes: int
    #: Its key, relative to the destination.
    key: str
    #: Its sha256; None in archives of other writers.
    sha256: str | None = None
    #: Whether its rows are sorted by key.
    sorted: bool = False
    #: (row key, byte offset) pairs at which tasks can begin to read.
    splits: tuple[tuple[str, int], ...] = ()
    #: (byte offset, CRC-32) of each block.
    blocks: tuple[tuple[int, int], ...] = ()
    #: Whether the format gives the rows' lines back byte for byte.
    exact: bool = True
    #: Whether the original writer's manifest names it, which says no key; ``key`` is computed then.
    by_original: bool = field(default=False, compare=False)
    #: Unknown fields, written again as they were.
    source: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def same_content(self, other: "FormatEntry") -> bool:
        """True if both have the same bytes, wherever the objects are."""
        return self.size_bytes == other.size_bytes and self.sha256 == other.sha256

    def to_json(self) -> dict[str, Any]:
        """The entry's object, known fields first."""
        known: dict[str, Any] = {"uri": self.uri, "size_bytes": self.size_bytes, "key": self.key}
        if self.sha256 is not None:
            known["sha256"] = self.sha256
        known["sorted"] = self.sorted
        if self.splits:
            known["splits"] = [list(split) for split in self.splits]
        if self.blocks:
            known["blocks"] = [list(block) for block in self.blocks]
        if not self.exact:
            known["exact"] = False
        return with_unknown(known, self.source)


@dataclass(frozen=True)
class Follows:
    """The head that a base was put after, which shows that a new history isn't another archive."""

    #: The head's epoch.
    epoch: int
    #: The head's position.
    position: Position
    #: The head's history.
    history: History | None
    #: The table's rows at the head.
    rows: int | None = None
    #: The table's checksum at the head.
    state_checksum: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The object as it is in a snapshot's entry."""
        return {
            "epoch": self.epoch,
            "position": positions.text(self.position),
            "history": None if self.history is None else str(self.history),
            "rows": self.rows,
            "state_checksum": self.state_checksum,
        }
