"""What a target says of itself: the boundary of the archive that it holds, and its files.

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
    """Not a state, or a later program's."""


@dataclass(frozen=True)
class SyncedFile:
    """One file of the target: the rows whose keys are from ``low`` to before ``high``."""

    name: str
    low: str | None
    high: str | None
    rows: int
    size_bytes: int

    @property
    def keys(self) -> KeyRange:
        """The same as the archive's ranges are given."""
        low, high = self.low, self.high
        return KeyRange(
            None if low is None else low.encode(), None if high is None else high.encode()
        )


@dataclass(frozen=True)
class SyncState:
    """``shape`` is what the rows look like: schema and options; another one means new files.

    ``in_ranges``: whether the files are key ranges, in key order, so that changes can be merged.
    ``built_rows``: of the largest file when all were last written.
    """

    version: int
    table: str
    history: str
    epoch: int
    position: Position
    shape: str
    rows: int
    in_ranges: bool
    built_rows: int
    files: tuple[SyncedFile, ...]

    def to_json(self) -> str:
        """As it is kept in the target."""
        described = {"format": FORMAT, **asdict(self), "position": positions.text(self.position)}
        return json.dumps(described, indent=1) + "\n"

    @classmethod
    def parse(cls, text: str | bytes) -> "SyncState":
        """:raises StateUnreadable: if it isn't one that this program knows."""
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
