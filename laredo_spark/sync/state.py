"""The state that a sync records in its target: the archive's boundary that it holds."""

import json
from dataclasses import asdict, dataclass, fields

from laredo_model import position as positions
from laredo_model.position import Position

FORMAT = 1


class StateUnreadable(ValueError):
    """A text that isn't a state, or one of a newer program."""


@dataclass(frozen=True)
class SyncState:
    """The boundary that a target holds."""

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
    #: Schema, special values and key of the rows; if it changes, all rows are rewritten.
    shape: str
    #: The target's rows.
    rows: int

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
            given = json.loads(text)
            if given["format"] != FORMAT:
                raise StateUnreadable("it was written by a newer program")
            # Earlier programs recorded files too, which only a Parquet target had.
            known = {field.name: given[field.name] for field in fields(cls)}
            return cls(**{**known, "position": positions.parse(given["position"])})
        except StateUnreadable:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as wrong:
            raise StateUnreadable(f"it can't be read: {wrong}") from wrong
