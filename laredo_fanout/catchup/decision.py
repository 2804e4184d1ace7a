"""How many segments a backlog is split into, from what was measured while the one slot read it.

Segments decode side by side, and the one ingest takes what they decoded in turn. So they help
where PostgreSQL's decoding binds: never beyond 1 / (the ingest's share of its core) times the
rate of the one slot, and never beyond what the free cores carry.
"""

from __future__ import annotations

from typing import NamedTuple

DECODING_BINDS = 0.7
"""The walsender must be at work for so large a part of the time."""
LEAST_GAIN = 1.3
"""Of the one slot's rate. Below it a split isn't worth its start and PostgreSQL's CPU."""
_SPOOLING = 0.25
"""A segment's process: of what the ingest takes for the same changes (framing, spool)."""
_SKIPPING = 0.15
"""To pass over WAL before a segment's start, of what decoding it costs."""
_SEVERAL_SERVERS = (
    "to spread the load, give some tables a server and a slot of their own"
    " (docs/server/several-servers.md)"
)


class Measured(NamedTuple):
    """What a backlog's reading through the one slot took; None where it can't be measured."""

    #: Share of one core that the ingest's thread uses.
    ingest: float
    #: Share of the time that the walsender decodes, rather than waits for us or the network.
    decoding: float | None
    #: Share of one core that the walsender uses, if PostgreSQL runs on this host.
    walsender: float | None
    #: Cores of this host that are idle and that we may use.
    idle: float | None

    def __str__(self) -> str:
        decoding, walsender, idle = self.decoding, self.walsender, self.idle
        return (
            f"the ingest uses {self.ingest:.2f} of a core, PostgreSQL's walsender "
            + (
                "can't be seen (assumed: it decodes all of the time)"
                if decoding is None
                else f"decodes {100 * decoding:.0f} % of the time"
            )
            + (
                ", PostgreSQL's CPU can't be seen from here (assumed: a free core for each segment)"
                if walsender is None
                else f" with {walsender:.2f} of a core here"
            )
            + (
                ", idle cores can't be measured (assumed: enough)"
                if idle is None
                else f", {idle:.1f} cores are idle here"
            )
        )


class Decision(NamedTuple):
    """How many segments there should be (1: none), the rate to expect of them, and why."""

    segments: int
    gain: float
    why: str


def decide(measured: Measured, most: int) -> Decision:
    """The fewest segments, of at most ``most``, that get the highest rate; 1 where none pays."""
    decoding = 1.0 if measured.decoding is None else measured.decoding
    if decoding < DECODING_BINDS:
        return Decision(
            1,
            1.0,
            f"PostgreSQL's decoding doesn't bind, so segments don't help: {measured}. Where the"
            f" ingest or the disk below state.path binds, {_SEVERAL_SERVERS}; otherwise the network"
            " does",
        )
    gains = {number: _gain(measured, number) for number in range(2, most + 1)}
    best = max(gains.values(), default=1.0)
    if best < LEAST_GAIN:
        binds = "the ingest" if _by_ingest(measured) < LEAST_GAIN else "the number of idle cores"
        return Decision(
            1,
            best,
            f"segments would make {best:.2f} of the one slot's rate at best, as {binds} binds:"
            f" {measured}; {_SEVERAL_SERVERS}",
        )
    number = min(number for number, gain in gains.items() if gain >= 0.99 * best)
    return Decision(
        number,
        gains[number],
        f"decoding binds, {gains[number]:.1f} of the rate expected: {measured}",
    )


def _by_ingest(measured: Measured) -> float:
    return 1 / max(measured.ingest, 0.01)


def _gain(measured: Measured, number: int) -> float:
    """The rate of so many segments, of the one slot's."""
    return min(float(number), _by_ingest(measured), _by_cores(measured, number))


def _by_cores(measured: Measured, number: int) -> float:
    if measured.idle is None:
        return float(number)
    # Segment k passes over k of n parts.
    walsender = measured.walsender or 0.0
    decoding = walsender * (1 + _SKIPPING * (number - 1) / 2)
    used = max(measured.ingest * (1 + _SPOOLING) + decoding, 0.01)
    return (measured.idle + measured.ingest + walsender) / used
