"""One server's use of a slot that several servers share: its claim, and what it may confirm."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from laredo_fanout.errors import SlotForeign
from laredo_fanout.postgres import pgoutput
from laredo_fanout.postgres.connections import SourceError
from laredo_fanout.slot import rules
from laredo_fanout.slot.rules import ClaimVerdict, HolderClaim
from laredo_fanout.store.environment import OPEN, Ownership
from laredo_model import position as position_

if TYPE_CHECKING:
    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.slot.reports import StandbyReports
    from laredo_fanout.slot.slot import Slot
    from laredo_fanout.store.transaction import Transaction
    from laredo_fanout.store.writer import Store

_log = structlog.get_logger()

_NO_OWNERSHIP = Ownership(0, holder=False)


class Deposed(SourceError):
    """Another server has taken over the slot: this one is a standby."""

    def __init__(self, text: str, term: int) -> None:
        super().__init__(text)
        self.term = term


class TakeoverRefused(SourceError):
    """This server can't go on from the slot with what it has."""


class SlotSharing:
    """This server's share in the slot; it lives as long as the server.

    ``taking_over``: the sessions that follow are those of a standby that was promoted.
    """

    def __init__(self, store: Store, reports: StandbyReports, on_held: Callable[[], None]) -> None:
        """``on_held`` is called once the server is the holder, by what its store has."""
        self.on_held = on_held
        self.store = store
        self.reports = reports
        self.taking_over = False
        self.takeovers = 0
        """Number of times that this server took over."""

    @property
    def ownership(self) -> Ownership:
        """This server's role, as its store records it."""
        return self.store.ownership or _NO_OWNERSHIP

    def ends(self, error: SourceError) -> bool:
        """True if the server doesn't go on reading the slot after this error."""
        if self.taking_over or isinstance(error, Deposed):
            return True
        # A slot that a peer has made, and that this store has never used.
        return isinstance(error, SlotForeign) and not self.store.position

    def claim(self, slot: str) -> SlotClaim:
        """The claim of a session that begins now."""
        return SlotClaim(self, slot)


class SlotClaim:
    """One session's claim to the slot; used by the ingest's thread."""

    def __init__(self, sharing: SlotSharing, slot: str) -> None:
        self._sharing = sharing
        self._store = store = sharing.store
        self._slot = slot
        term = sharing.ownership.term
        self._claim = HolderClaim(
            slot,
            store.server_id,
            term + 1 if sharing.taking_over else max(term, 1),
            pgoutput.new_token(),
        )
        self._came_back = False
        self.confirms = False
        """True if the claim is durable: the server is the holder."""
        self._confirmed = 0
        """The slot's own at first: what is less isn't sent."""

    # ------------------------------------------------------------ before the stream

    def check(self, found: Slot | None) -> None:
        """Check that this store may go on from the slot as it was found.

        :raises Deposed: if the slot was moved on by another server.
        :raises TakeoverRefused: if a table would have to be copied, or the slot made again.
        """
        taking_over = self._sharing.taking_over
        if found is None or found.confirmed is None or found.wal_status == "lost":
            if taking_over:
                raise TakeoverRefused(f"slot {self._slot} doesn't exist, or was invalidated")
            return
        self._confirmed = found.confirmed
        own = self._store.position
        live = [each for each in self._store.tables.values() if each.live]
        tables = {each.qualified: max(each.position, own) for each in live}
        late = rules.behind(tables or {"any table": own}, found.confirmed)
        if not late:
            return
        where = f"slot {self._slot} is confirmed up to {position_.text(found.confirmed)}"
        if taking_over:
            raise TakeoverRefused(
                f"{where}, beyond what this server has of {', '.join(late)}: they would have to be"
                " copied again. Promote another standby, or wait until this one has caught up"
            )
        raise Deposed(
            f"{where}, beyond this store's {position_.text(own)}: another server has read it",
            self._sharing.ownership.term,
        )

    def check_loss(self, lost: str) -> None:
        """Check that the slot and the tables may be made again, as changes are lost.

        :raises TakeoverRefused: if a standby takes over, which must not copy tables again.
        """
        if self._sharing.taking_over:
            raise TakeoverRefused(f"{lost}: every table would have to be copied again")

    # ------------------------------------------------------------ the stream

    def begin(self, connection: Connection) -> None:
        """Write the claim: the stream has begun, and nobody else reads the slot.

        :raises psycopg.Error: if PostgreSQL can't be asked.
        """
        source = self._store.source
        assert source is not None
        self._sharing.reports.begin()
        pgoutput.emit(connection, self._claim.payload(source.token))
        _log.info("slot claimed", slot=self._slot, term=self._claim.term)

    def is_for_us(self, content: bytes) -> bool:
        """True if :meth:`met` handles such a message; may be called from any thread."""
        return self._claim_in(content) is not None or (
            self._is_takeover and pgoutput.is_barrier(content, self._slot)
        )

    @property
    def _is_takeover(self) -> bool:
        """True if the stream may still bring messages of the former holder."""
        return self._sharing.taking_over and not self._came_back

    def _claim_in(self, content: bytes) -> HolderClaim | None:
        source = self._store.source
        return None if source is None else rules.claim_in(content, self._slot, source.token)

    def met(self, content: bytes, position: int, transaction: Transaction) -> bool:
        """Handle a message that arrived at ``position``; returns False if it isn't for this claim.

        Call :meth:`durable` once the transaction is durable.

        :raises Deposed: if another server has taken over.
        """
        met = self._claim_in(content)
        if met is None:
            if not self.is_for_us(content):
                return False
            self._doubt(position, position, transaction)
            return True
        verdict = rules.judge(self._claim, met, came_back=self._came_back)
        if verdict is ClaimVerdict.DEPOSED:
            raise Deposed(
                f"server {met.server_id} took over slot {self._slot} at"
                f" {position_.text(position)}, with term {met.term}",
                met.term,
            )
        if verdict is ClaimVerdict.OURS:
            self._came_back = True
            known = transaction.ownership or self._sharing.ownership
            transaction.ownership = known.held(self._claim.term, position)
        elif self._is_takeover and rules.unknown(
            self._claim, met, followed=self._sharing.ownership.followed
        ):
            self._doubt(0, position, transaction)
        return True

    def _doubt(self, start: int, position: int, transaction: Transaction) -> None:
        """Record that clients of another server may have other rows from ``start`` on.

        It ended a copy or a repair, whose differences no message describes, or it was a holder that
        this server never followed.
        """
        known = transaction.ownership or self._sharing.ownership
        if any(first <= start and end == OPEN for first, end in known.doubts):
            return
        transaction.ownership = known.doubting([(start, OPEN)])
        _log.warning(
            "another server's rows not known",
            position=position_.text(position),
            from_position=position_.text(start),
        )

    def durable(self) -> None:
        """Note that all messages met are durable: with its claim the server is the holder."""
        if not self._came_back or self.confirms:
            return
        self._sharing.takeovers += self._sharing.taking_over
        self.confirms, self._sharing.taking_over = True, False
        self._sharing.on_held()
        _log.info("slot held", slot=self._slot, term=self._claim.term)

    @property
    def takes_over(self) -> bool:
        """True if a promoted standby makes the claim, and it isn't durable yet."""
        return self._sharing.taking_over

    def confirmable(self) -> int:
        """Position to confirm to the slot, never less than before; 0: none yet."""
        if not self.confirms:
            return 0
        position = self._sharing.reports.confirmable()
        if position <= self._confirmed:
            return 0
        self._confirmed = position
        return position
