"""The plan of fall-behind mode: options, segments, orders to their processes, status.

The first line on its stdin is the :class:`Order`; then single bytes: :data:`PAUSE`,
:data:`GO_ON`, :data:`FINISH`. When its stdin ends, so does it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from laredo_fanout.source_options import PublicationOptions, SourceOptions
from laredo_model import position as position_

# The plan: which segment owns which transactions, and what of them is safe in spools.
#
# Segment k owns exactly the transactions whose commit record begins in [S_k, S_k+1): the server
# skips a transaction iff its commit record begins before the position that streaming starts at, so
# any position is a boundary. The last segment is open.


class SpoolPiece(NamedTuple):
    """A spool's file: ``size`` bytes of whole transactions, the last of which ends at
    ``position``."""

    number: int
    size: int
    position: int


@dataclass(frozen=True, slots=True)
class Segment:
    """``stop`` is None for the last one. ``done``: every transaction of it is in its pieces."""

    number: int
    start: int
    stop: int | None
    pieces: tuple[SpoolPiece, ...] = ()
    done: bool = False

    @property
    def position(self) -> int:
        """Position where its decoding resumes."""
        return self.pieces[-1].position if self.pieces else self.start

    @property
    def next_piece(self) -> int:
        """A number that no piece has had."""
        return self.pieces[-1].number + 1 if self.pieces else 0


@dataclass(frozen=True, slots=True)
class CatchupPlan:
    """``source`` identifies the positions' source; ``token`` names the plan's spools."""

    token: str
    source: str
    segments: tuple[Segment, ...]

    def to_bytes(self) -> bytes:
        """As JSON, for the store."""
        return orjson.dumps(
            {
                "token": self.token,
                "source": self.source,
                "segments": [_segment_to_json(segment) for segment in self.segments],
            }
        )


def from_bytes(stored: bytes) -> CatchupPlan:
    """The plan that ``to_bytes`` wrote."""
    read = orjson.loads(stored)
    return CatchupPlan(
        read["token"], read["source"], tuple(map(_segment_from_json, read["segments"]))
    )


def split(start: int, end: int, number: int) -> tuple[Segment, ...]:
    """``number`` segments of equal length between two positions, the last one open-ended."""
    starts = [start + (end - start) * each // number for each in range(number)]
    return bounded(starts)


def bounded(starts: list[int]) -> tuple[Segment, ...]:
    """The segments that begin at these ascending positions."""
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


# The settings of fall-behind mode.


class CatchupMode(StrEnum):
    """Trigger for the splitting of a backlog: the threshold, or a command."""

    AUTO = "auto"
    """A backlog is split when it is larger than the threshold."""
    MANUAL = "manual"
    """A backlog is split when an operator asks for it."""


@dataclass(frozen=True)
class CatchupOptions:
    """Sizes in bytes of WAL, times in seconds.

    ``auto`` begins when the lag was above ``threshold_bytes`` at three checks in a row,
    and ends below a quarter of it. ``reserve`` slots and walsenders are left to
    others. What is decoded and not yet released is in ``spool_directory``, at
    most about ``spool_max_bytes`` of it.
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
    """A spool's files are about so large, and removed one by one."""
    keep_interval: float = 5.0
    """Seconds between two records of the segments' progress in the store."""


# The status of fall-behind mode: plain values, made for each request.


class SegmentStatus(NamedTuple):
    """One segment: transactions from ``start`` on, before ``stop`` (None: as they come).

    ``position`` is the end of the last one in its spool, ``reached`` how far the
    server has decoded for it; ``state`` is waiting, decoding, paused, decoded,
    releasing or released.
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
        """As /status shows it."""
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
    """Sizes in bytes. ``lag_bytes`` is what the server has written beyond what is durable
    here, ``checks_above`` how many times in a row it was above the threshold;
    ``release_position`` and ``segments`` are there while a backlog is split.

    ``restarts`` counts segments' processes that were restarted, ``plans`` backlogs
    that were split, ``given_up`` those of them that were read through the one slot
    after all; ``trouble`` has the reason why the last one was, or wasn't split.
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
        """As /status shows it."""
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
