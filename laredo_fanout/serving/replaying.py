"""One session's replay under way: planned, pinned, sent a piece at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import NamedTuple

import structlog

from laredo_archive.errors import ArchiveError
from laredo_archive.location import Found
from laredo_archive.manifest import Artifact
from laredo_fanout.serving import replay, slices
from laredo_fanout.serving.archives import TableArchive
from laredo_fanout.serving.forms import Form
from laredo_fanout.serving.level import read_table
from laredo_fanout.serving.pin import Pin
from laredo_fanout.serving.replay import Chain, NoReplay, Outcome
from laredo_fanout.serving.replay_records import Piece, pieces
from laredo_fanout.serving.request import SyncAsked
from laredo_fanout.serving.resume import same_history
from laredo_fanout.serving.shared import Shared
from laredo_fanout.store.view import TableView
from laredo_model import position as position_
from laredo_model.change import Change

log = structlog.get_logger(__name__)

ATTEMPTS = 3
LOOK_S = 1.0


class ReplayBroken(Exception):
    """The archive couldn't be read in the middle; said in the log and counted already."""


class Plan(NamedTuple):
    """What brings the client level, and the table as it was when the journal was pinned.

    `after`: the last entry that the journal needn't send; `first_sequence`: the first number of
    what is replayed.
    """

    found: Found
    chain: Chain
    view: TableView
    after: int
    first_sequence: int


async def plan(archive: TableArchive, asked: SyncAsked, shared: Shared, pin: Pin) -> Plan:
    """How the archive brings the client level; the journal is pinned then.

    :raises NoReplay: it doesn't.
    :raises NotReady: the table isn't shown any more.
    """
    newest = False
    for _ in range(ATTEMPTS):
        found, read_now = await archive.found(newest=newest)
        try:
            chain, view = _chain(archive, found, asked, shared)
        except NoReplay:
            if read_now:
                raise
            newest = True
            continue
        after = shared.reader.sequence_after_position(view.id, chain.through) - 1
        await pin.hold(view.id, after)
        pinned, _ = read_table(shared, asked.table)
        if pinned.id == view.id and pinned.floor <= chain.through:
            return Plan(found, chain, pinned, after, _first_sequence(pinned, chain))
        pin.release()
        newest = True
    raise NoReplay(Outcome.UNCOVERED, "the journal is pruned faster than the archive is written")


def _chain(
    archive: TableArchive, found: Found, asked: SyncAsked, shared: Shared
) -> tuple[Chain, TableView]:
    view, source = read_table(shared, asked.table)
    if not same_history(asked, source):
        raise NoReplay(Outcome.UNCOVERED, f"the server follows history {source.history} now")
    where = found.destination.uri_of(found.manifest_key)
    try:
        chain = replay.chain(found.manifest, where, asked, view, source.history)
    except ArchiveError as damaged:
        raise NoReplay(Outcome.UNREADABLE, str(damaged)) from damaged
    archive.check(found, chain.diffs)
    return chain, view


def _first_sequence(view: TableView, chain: Chain) -> int:
    first = view.oldest_sequence - chain.entries
    if first < 1:
        raise NoReplay(
            Outcome.UNCOVERED,
            f"{chain.entries} changes can't be numbered below sequence {view.oldest_sequence}",
        )
    return first


class Replay:
    """The sending of a plan. `cursor` and `position` say how far the client has come."""

    def __init__(
        self,
        archive: TableArchive,
        planned: Plan,
        form: Form,
        form_inside: Form,
        send: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self.cursor = planned.first_sequence - 1
        self.position: int = planned.chain.before
        self._left = planned.chain.entries
        self._archive = archive
        self._plan = planned
        self._form = form
        self._form_inside = form_inside
        self._send = send
        self._diff: Artifact | None = None
        self._pieces: Generator[Piece, None, None] = pieces(
            planned.chain,
            self._changes,
            planned.first_sequence,
            with_old=form.wants_old,
            stay_before=not form.extended,
        )
        self._coming = archive.submit(self._next)
        self._ended = False

    @property
    def through(self) -> bool:
        """Whether all was sent: the journal's turn."""
        return self._ended

    def left(self, view: TableView) -> int:
        """How many changes the client still has to be sent, the journal's included."""
        return self._left + max(view.sequence - self._plan.after, 0)

    async def step(self) -> bool:
        """Send the next piece, or wait for it a while; False if the archive kept us waiting.

        :raises ReplayBroken: the archive can't be read after all.
        """
        coming = asyncio.wrap_future(self._coming)
        coming.add_done_callback(_retrieved)
        await asyncio.wait({coming}, timeout=LOOK_S)
        if not coming.done():
            return False
        try:
            piece = coming.result()
        except Exception as failure:
            self._break(failure)
            raise ReplayBroken(str(failure)) from failure
        if piece is None:
            self._finish()
            return True
        # The next one is read while this one is on its way.
        self._coming = self._archive.submit(self._next)
        await self._send_piece(piece)
        return True

    async def _send_piece(self, piece: Piece) -> None:
        record = piece.record
        if record is not None:
            form = self._form_inside if piece.inside else self._form
            for message in await slices.run(form.changes(record)):
                await self._send(message)
            self.cursor = record.last_sequence
            self._left -= len(record)
        if piece.complete is not None:
            self.position = piece.complete

    def _finish(self) -> None:
        self._ended = True
        self.cursor = self._plan.after
        self.position = self._plan.chain.through
        self._archive.count(Outcome.COMPLETE)

    def _break(self, failure: Exception) -> None:
        self._ended = True
        if self._diff is not None:
            self._archive.broken(self._diff)
        self._archive.count(Outcome.BROKEN)
        told = isinstance(failure, ArchiveError | OSError)
        log.warning(
            "replay from the archive broke off, the client gets a snapshot",
            table=self._archive.table,
            position=position_.text(self.position),
            error=str(failure),
            exc_info=None if told else failure,
        )

    def close(self) -> None:
        """Give everything back; a replay that isn't through was left."""
        if not self._ended:
            self._archive.count(Outcome.LEFT)
            self._ended = True
        # A read under way ends by itself, and only then may its iterator be closed.
        self._coming.cancel()
        self._coming.add_done_callback(lambda _: self._pieces.close())

    def _next(self) -> Piece | None:
        return next(self._pieces, None)

    def _changes(self, diff: Artifact) -> Iterator[Change]:
        self._diff = diff
        return self._archive.changes(self._plan.found, diff, self._plan.view.columns)


def _retrieved(future: asyncio.Future[Piece | None]) -> None:
    """It may be that nobody asks this future: the next step has one of its own."""
    if not future.cancelled():
        future.exception()
