"""The plan of fall-behind mode: options, segments, orders to their processes, status.

A segment's process reads from stdin its :class:`Order`, a line, and then single bytes:
:data:`PAUSE`, :data:`GO_ON`, :data:`FINISH`. It ends when its stdin ends.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from laredo_fanout.source_options import PublicationOptions, SourceOptions
from laredo_model import position as position_

# Segment k owns exactly the transactions whose commit record begins in [S_k, S_k+1): PostgreSQL
# skips a transaction iff its commit record begins before the stream's start position, so any
# position can be a boundary. The last segment is open-ended.


class SpoolPiece(NamedTuple):
    """A spool's file: ``size`` bytes of whole transactions, the last of which ends at
    ``position``."""

    number: int
    size: int
    position: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment; the last has no ``stop``. If ``done``, its pieces have all its transactions."""

    number: int
    start: int
    stop: int | None
    pieces: tuple[SpoolPiece, ...] = ()
    done: bool = False

    @property
    def position(self) -> int:
        """Position at which its decoding resumes."""
        return self.pieces[-1].position if self.pieces else self.start

    @property
    def next_piece(self) -> int:
        """Number of the next piece."""
        return self.pieces[-1].number + 1 if self.pieces else 0


@dataclass(frozen=True, slots=True)
class CatchupPlan:
    """A plan; ``source`` identifies the history of its positions, ``token`` names its spools."""

    token: str
    source: str
    segments: tuple[Segment, ...]

    def to_bytes(self) -> bytes:
        """The plan as JSON, for the store."""
        return orjson.dumps(
            {
                "token": self.token,
                "source": self.source,
                "segments": [_segment_to_json(segment) for segment in self.segments],
            }
        )


def from_bytes(stored: bytes) -> CatchupPlan:
    """Parse the result of ``to_bytes``."""
    read = orjson.loads(stored)
    return CatchupPlan(
        read["token"], read["source"], tuple(map(_segment_from_json, read["segments"]))
    )


def split(start: int, end: int, number: int) -> tuple[Segment, ...]:
    """``number`` segments of equal length between two positions, the last one open-ended."""
    starts = [start + (end - start) * each // number for each in range(number)]
    return bounded(starts)


def bounded(starts: list[int]) -> tuple[Segment, ...]:
    """The segments with these ascending starts."""
    stops = [*starts[1:], None]
    pairs = zip(starts, stops, strict=True)
    return tuple(Segment(number, start, stop) for number, (start, stop) in enumerate(pairs))


def _segment_to_json(segment: Segment) -> dict[str, Any]:
    return {
        "number": segment.number,
        "start": position_.text(segment.start),
        "stop": None if segment.stop is None else position_.text(segment.stop),
        "pieces": [list(piece) for piece in segment.pieces],
        "done": segment.done,
    }


def _segment_from_json(read: dict[str, Any]) -> Segment:
    return Segment(
        read["number"],
        position_.parse(read["start"]),
        None if read["stop"] is None else position_.parse(read["stop"]),
        tuple(SpoolPiece(*piece) for piece in read["pieces"]),
        read["done"],
    )


class CatchupMode(StrEnum):
    """Trigger that splits a backlog: the threshold, or a command."""

    AUTO = "auto"
    """A backlog is split if it is larger than the threshold."""
    MANUAL = "manual"
    """A backlog is split when an operator requests it."""


@dataclass(frozen=True)
class CatchupOptions:
    """Settings of fall-behind mode; sizes are in bytes of WAL, times in seconds.

    ``auto`` splits a backlog that was above ``threshold_bytes`` in three successive
    checks, and ends below a quarter of that. ``reserve`` slots and walsenders are left
    for others. Decoded changes that aren't released yet are in ``spool_directory``, at
    most about ``spool_max_bytes`` of them.
    """

    spool_directory: Path
    mode: CatchupMode = CatchupMode.MANUAL
    threshold_bytes: int = 1 << 30
    check_interval: float = 1.0
    max_segments: int = 4
    min_segment_bytes: int = 64 * 10**6
    reserve: int = 2
    spool_max_bytes: int = 8 << 30
    piece_bytes: int = 64 << 20
    """Approximate size of a spool's files, which are removed one by one."""
    keep_interval: float = 5.0
    """Seconds between two records of the segments' progress in the store."""


class SegmentStatus(NamedTuple):
    """Status of a segment: transactions from ``start`` on, before ``stop`` (None for the last one).

    ``position`` is the end of the last transaction in its spool, ``reached`` the
    position that the walsender has decoded; ``state`` is waiting, decoding, paused,
    decoded, releasing or released.
    """

    number: int
    start: int
    stop: int | None
    position: int
    reached: int
    state: str
    spooled_bytes: int
    pid: int | None

    def to_json(self) -> dict[str, Any]:
        """The segment as JSON for /status."""
        positions = {
            name: None if position is None else position_.text(position)
            for name, position in (
                ("start", self.start),
                ("stop", self.stop),
                ("position", self.position),
                ("reached", self.reached),
            )
        }
        return {**self._asdict(), **positions}


class CatchupStatus(NamedTuple):
    """Status of fall-behind mode; sizes are in bytes.

    ``lag_bytes`` is the WAL after the durable position, ``checks_above`` the number of
    successive checks above the threshold. ``release_position`` and ``segments`` are set
    while a backlog is split.

    ``plans`` counts backlogs that were split, ``given_up`` those of them whose rest was
    read through the one slot, ``restarts`` segments' processes that were restarted.
    ``trouble`` has the reason why the last backlog was given up, or wasn't split.
    """

    mode: str
    threshold_bytes: int
    lag_bytes: int
    checks_above: int
    plans: int
    given_up: int
    restarts: int
    trouble: str | None
    release_position: int | None
    spool_bytes: int
    segments: tuple[SegmentStatus, ...]

    def to_json(self) -> dict[str, Any]:
        """The status as JSON for /status."""
        released = self.release_position
        return {
            **self._asdict(),
            "active": released is not None,
            "release_position": None if released is None else position_.text(released),
            "segments": [segment.to_json() for segment in self.segments],
        }


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
    """The slot was moved beyond the segment's start, or is gone."""
    NO_SPACE = "no space"
    """The spool can't be written."""
    BROKEN = "broken"
    """Anything else."""


@dataclass(frozen=True)
class Order:
    """Order to decode transactions from ``start`` up to, not including, ``stop``.

    The first piece to write has the number ``piece``.
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
        """The source's options for the process's own connections."""
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
        """The order as a line of JSON."""
        return orjson.dumps(asdict(self)) + b"\n"


@dataclass(frozen=True)
class Report:
    """Progress of a segment's process.

    The piece has ``size`` bytes of whole transactions, the last of which ends at ``position``;
    ``reached`` is the position up to which the walsender has decoded. If ``synced``, these bytes
    and all earlier pieces survive a power loss. ``changes`` counts rows.
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
        """The report as a line of JSON."""
        return orjson.dumps(asdict(self)) + b"\n"


def order_from_bytes(line: bytes) -> Order:
    """Parse a line that ``Order.to_bytes`` wrote."""
    return Order(**orjson.loads(line))


def report_from_bytes(line: bytes) -> Report:
    """Parse a line that ``Report.to_bytes`` wrote."""
    read: dict[str, Any] = orjson.loads(line)
    failure = read["failure"]
    return Report(**{**read, "failure": None if failure is None else Failure(failure)})
