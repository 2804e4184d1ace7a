"""The rules of the standby protocol, without connections and clocks: claims, confirmation.

docs/standby-protocol.md has the reasons; tests/fanout/standby simulates them.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import NamedTuple

_CLAIM = re.compile(
    rb"(?P<slot>[a-z0-9_]{1,63}):(?P<server>[0-9a-f]{32}):claim:"
    rb"(?P<term>[0-9]{1,10}):(?P<nonce>[0-9a-f]{16}):(?P<hash>[0-9a-f]{32})"
)


class HolderClaim(NamedTuple):
    """A server's claim to the slot, as a message in the WAL has it."""

    slot: str
    server_id: str
    term: int
    #: A random value of one session: the same server may have claimed this term before.
    nonce: str

    def payload(self, token: str) -> str:
        """Content of the message; ``token`` is the slot's secret."""
        text = f"{self.slot}:{self.server_id}:claim:{self.term}:{self.nonce}"
        return f"{text}:{_hash(text, token)}"


def claim_in(content: bytes, slot: str, token: str) -> HolderClaim | None:
    """The claim to ``slot`` in a message's content; None: it is none, or forged."""
    found = _CLAIM.fullmatch(content)
    if found is None or found["slot"].decode() != slot:
        return None
    text = content.decode()
    if not hmac.compare_digest(found["hash"].decode(), _hash(text[:-33], token)):
        return None
    return HolderClaim(slot, found["server"].decode(), int(found["term"]), found["nonce"].decode())


def _hash(text: str, token: str) -> str:
    return hmac.new(token.encode(), text.encode(), "sha256").hexdigest()[:32]


class ClaimVerdict(Enum):
    """Meaning of a claim that the slot's stream brought."""

    OURS = auto()
    """It is this session's own: nobody took over before it."""
    DEPOSED = auto()
    """Another server has taken over."""
    PAST = auto()
    """A former holder's, or of an earlier session."""


def judge(own: HolderClaim, met: HolderClaim, *, came_back: bool) -> ClaimVerdict:
    """Judge a claim in the stream; ``came_back``: the session's own was met before."""
    if met == own:
        return ClaimVerdict.OURS
    if met.server_id == own.server_id:
        return ClaimVerdict.PAST
    first = met.term == own.term and not came_back
    return ClaimVerdict.DEPOSED if met.term > own.term or first else ClaimVerdict.PAST


def unknown(own: HolderClaim, met: HolderClaim, *, followed: int) -> bool:
    """True if ``met`` is the claim of a holder that this server has never followed.

    That holder's clients may have other rows, from any position on. ``followed`` is the term of the
    last holder that this server has followed.
    """
    return met.server_id != own.server_id and met.term > followed


class Reported(NamedTuple):
    """The position that one connected standby has durably, of the tables that it has."""

    position: int
    #: True if it has every live table of the holder.
    complete: bool


def confirmable(
    own: int, reports: Iterable[Reported], *, synchronous: int, alone: bool
) -> int | None:
    """Position that may be confirmed to the slot; None: none yet.

    ``alone``: too few standbys were complete for longer than the holder's patience.
    """
    reports = list(reports)
    if not synchronous:
        return own
    whole = sorted((each.position for each in reports if each.complete), reverse=True)
    if len(whole) >= synchronous:
        return min(own, whole[synchronous - 1])
    if not alone:
        return None
    return min([own, *(each.position for each in reports)])


class Candidate(NamedTuple):
    """A standby that sees the slot free, and can go on from there; the highest one goes first."""

    position: int
    server_id: str


def takes_over(free_s: float, after_s: float, own: Candidate, others: Iterable[Candidate]) -> bool:
    """True if a standby is to take over a slot that it has seen free for ``free_s`` seconds, while
    no holder answered.

    ``others`` are the candidates that answer. One that is higher goes first; if it hasn't taken
    over after another ``after_s``, this one does.
    """
    first = all(own > each for each in others)
    return free_s >= (after_s if first else 2 * after_s)


def behind(tables: Mapping[str, int], confirmed: int) -> list[str]:
    """Tables that a takeover would have to copy, as the slot is confirmed beyond their positions;
    ``tables``: each live table's position."""
    return sorted(name for name, position in tables.items() if position < confirmed)
