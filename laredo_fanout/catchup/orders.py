"""The order to a segment's process and its reports, each a line of JSON over its pipes.

The first line on its stdin is the :class:`Order`; then single bytes: :data:`PAUSE`,
:data:`GO_ON`, :data:`FINISH`. When its stdin ends, so does it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson

from laredo_fanout.source_options import PublicationOptions, SourceOptions

PAUSE, GO_ON, FINISH = b"p", b"g", b"f"


class Failure(StrEnum):
    """Reason why a segment's process gave up."""

    UNREACHABLE = "unreachable"
    """No connection can be made."""
    CUT = "cut"
    """The stream was cut."""
    NO_ROOM = "no room"
    """No free slot or walsender."""
    GAP = "gap"
    """The slot is beyond the segment's start, or gone."""
    NO_SPACE = "no space"
    """The spool can't be written."""
    BROKEN = "broken"
    """Anything else."""


@dataclass(frozen=True)
class Order:
    """Order to decode transactions from ``start`` up to, not including, ``stop``.

    They go into pieces, the first of which has number ``piece``.
    """

    connection: str
    slot: str
    publication: str
    connect_timeout: float
    receive_timeout: float
    temporary: str
    segment: int
    start: int
    stop: int | None
    directory: str
    piece: int
    piece_bytes: int
    appends: str | None = None
    """The publication of append-only tables, if the stream has any."""

    @property
    def source(self) -> SourceOptions:
        """The source as its own connections see it."""
        return SourceOptions(
            self.connection,
            slot_name=self.slot,
            publication=PublicationOptions(self.publication),
            connect_timeout=self.connect_timeout,
            receive_timeout=self.receive_timeout,
        )

    @property
    def path(self) -> Path:
        """Directory for the pieces."""
        return Path(self.directory)

    def to_bytes(self) -> bytes:
        """A line of JSON."""
        return orjson.dumps(asdict(self)) + b"\n"


@dataclass(frozen=True)
class Report:
    """Progress of a segment's process.

    The piece has ``size`` bytes of whole transactions, the last of which ends at ``position``;
    ``reached`` is the position up to which the walsender has decoded. If ``synced``, these bytes
    and all pieces before survive a power loss. ``changes`` counts rows.
    """

    piece: int
    size: int
    position: int
    reached: int
    changes: int = 0
    synced: bool = False
    done: bool = False
    failure: Failure | None = None
    error: str = ""

    def to_bytes(self) -> bytes:
        """A line of JSON."""
        return orjson.dumps(asdict(self)) + b"\n"


def order_from_bytes(line: bytes) -> Order:
    """Parse a line that ``Order.to_bytes`` wrote."""
    return Order(**orjson.loads(line))


def report_from_bytes(line: bytes) -> Report:
    """Parse a line that ``Report.to_bytes`` wrote."""
    read: dict[str, Any] = orjson.loads(line)
    failure = read["failure"]
    return Report(**{**read, "failure": None if failure is None else Failure(failure)})
