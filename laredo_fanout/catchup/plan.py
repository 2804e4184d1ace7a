"""The plan: which segment owns which transactions, and what of them is safe in spools.

Segment k owns exactly the transactions whose commit record begins in [S_k, S_k+1):
the server skips a transaction iff its commit record begins before the position
that streaming starts at, so any position is a boundary. The last segment is open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from laredo_model import position as position_


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
