"""The state that a sync keeps in its target: the archive's boundary that it holds, its files.

In a Parquet target this is ``_laredo.json``, which readers of Parquet pass over.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from laredo_archive.manifest.key_ranges import KeyRange
from laredo_model import position as positions
from laredo_model.position import Position

FORMAT = 1


class StateUnreadable(ValueError):
    """A text that isn't a state, or one of a newer program."""


@dataclass(frozen=True)
class SyncedFile:
    """One file of a Parquet target, with the rows of one key range."""

    #: The file's name.
    name: str
    #: The first key of its range; None: from the first row on.
    low: str | None
    #: The first key after its range; None: to the last row.
    high: str | None
    #: Its rows.
    rows: int
    #: Its size.
    size_bytes: int

    @property
    def keys(self) -> KeyRange:
        """Its key range."""
        low, high = self.low, self.high
        return KeyRange(
            None if low is None else low.encode(), None if high is None else high.encode()
        )


@dataclass(frozen=True)
class SyncState:
    """The boundary that a target holds, and its files."""

    #: Counts the target's versions, from 1.
    version: int
    #: The table, as the manifest names it.
    table: str
    #: The history of the boundary.
    history: str
    #: The epoch of the boundary.
    epoch: int
    #: The position of the boundary.
    position: Position
    #: Schema, special values and key of the rows; if it changes, all files are rewritten.
    shape: str
    #: The target's rows.
    rows: int
    #: Whether the files are key ranges, in key order, so that diffs can be merged.
    in_ranges: bool
    #: The rows of the largest file when all were last written.
    built_rows: int
    #: The files of a Parquet target.
    files: tuple[SyncedFile, ...]

    def to_json(self) -> str:
        """The text that the target keeps."""
        described = {"format": FORMAT, **asdict(self), "position": positions.text(self.position)}
        return json.dumps(described, indent=1) + "\n"

    @classmethod
    def parse(cls, text: str | bytes) -> "SyncState":
        """Parse :meth:`to_json`'s text.

        :raises StateUnreadable: if it isn't one that this program knows.
        """
        try:
            given: dict[str, Any] = json.loads(text)
            if given.pop("format") != FORMAT:
                raise StateUnreadable("it was written by a newer program")
            files: Sequence[dict[str, Any]] = given.pop("files")
            position = positions.parse(given.pop("position"))
            return cls(**given, position=position, files=tuple(SyncedFile(**f) for f in files))
        except StateUnreadable:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as wrong:
            raise StateUnreadable(f"it can't be read: {wrong}") from wrong
