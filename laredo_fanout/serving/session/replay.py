"""A session's replay phase: plans and sends the archive's diffs, while the journal is pinned."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, NamedTuple

import structlog

from laredo_archive.errors import ArchiveError
from laredo_fanout.serving import replay, slices
from laredo_fanout.serving.call import CheckedSyncRequest
from laredo_fanout.serving.replay import Chain, NoReplay, Outcome, Piece, pieces
from laredo_fanout.serving.session.client_stream import ClientStream
from laredo_fanout.serving.session.resume import read_table, same_history
from laredo_fanout.serving.session.snapshot_sender import SnapshotNeeded
from laredo_fanout.serving.shared import ServingResources
from laredo_fanout.store.environment import SourceIdentity
from laredo_fanout.store.reader import TableView
from laredo_model import position
from laredo_model.line import Change
from laredo_model.position import Position

if TYPE_CHECKING:
    from laredo_archive.manifest.model import Artifact
    from laredo_archive.read.location import FoundArchive
    from laredo_fanout.serving.archives import ReplayArchive

log = structlog.get_logger(__name__)

ATTEMPTS = 3
CHECK_EVERY_S = 1.0
_PATIENCE_S = 600.0
"""Longest time to read a piece, perhaps a large object as a whole: a read that hangs never ends."""


class ReplayPlan(NamedTuple):
    """The diffs that catch the client up, and the table as it was when the journal was pinned."""

    archive: ReplayArchive
    found: FoundArchive
    chain: Chain
    view: TableView
    #: The last entry that the journal needn't send.
    after: int
    #: The first number of what is replayed.
    first_sequence: int


async def plan(client: ClientStream, source: SourceIdentity) -> ReplayPlan | None:
    """Plan the replay that catches the client up instead of a snapshot, with the journal pinned;
    None if the archive can't.

    :raises NotReady: the table isn't shown any more.
    """
    asked = client.asked
    archive = client.shared.archives.get(asked.table)
    if archive is None or asked.position is None or not same_history(asked, source):
        return None
    try:
        return await _plan(archive, client)
    except NoReplay as because:
        client.pin.release()
        archive.count(because.outcome)
        log.info(
            "archive replay skipped; snapshot scheduled",
            table=asked.table,
            client=asked.client_id,
            outcome=because.outcome.value,
            reason=str(because),
        )
        return None


async def _plan(archive: ReplayArchive, client: ClientStream) -> ReplayPlan:
    """Plan the replay, with the journal pinned.

    :raises NoReplay: if the archive doesn't lead the client to the journal.
    """
    shared, asked, pin = client.shared, client.asked, client.pin
    newest = False
    for _ in range(ATTEMPTS):
        found, read_now = await archive.found(newest=newest)
        found = await archive.unfolded(found, *_ends(asked, shared))
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
            return ReplayPlan(archive, found, chain, pinned, after, _first_sequence(pinned, chain))
        pin.release()
        newest = True
    raise NoReplay(Outcome.UNCOVERED, "the journal is pruned faster than the archive is written")


def _chain(
    archive: ReplayArchive, found: FoundArchive, asked: CheckedSyncRequest, shared: ServingResources
) -> tuple[Chain, TableView]:
    view, source = read_table(shared, asked.table)
    if not same_history(asked, source):
        raise NoReplay(Outcome.UNCOVERED, f"the server follows history {source.history} now")
    where = found.destination.uri_of(found.manifest_key)
    try:
        chain = replay.chain(found.manifest, where, asked, view, source.lineage)
    except ArchiveError as damaged:
        raise NoReplay(Outcome.UNREADABLE, str(damaged)) from damaged
    archive.check(found, chain.diffs)
    return chain, view


def _ends(asked: CheckedSyncRequest, shared: ServingResources) -> Iterator[Position]:
    """Boundaries where a replay may begin and end, if the archive has them."""
    if asked.position:
        # A client of the base protocol may be inside the transaction that ends there.
        yield from (Position(asked.position), Position(asked.position - 1))
    yield Position(read_table(shared, asked.table)[0].position)


def _first_sequence(view: TableView, chain: Chain) -> int:
    first = view.oldest_sequence - chain.entries
    if first < 1:
        raise NoReplay(
            Outcome.UNCOVERED,
            f"{chain.entries} changes can't be numbered below sequence {view.oldest_sequence}",
        )
    return first


class Replay:
    """Sends the diffs of a plan."""

    def __init__(self, client: ClientStream, planned: ReplayPlan) -> None:
        chain, form = planned.chain, client.form
        inside = None if client.filter is None else client.filter.of_unknown()
        self._client = client
        self._plan = planned
        self._archive = planned.archive
        self._left = chain.entries
        # The client may have all of the first diff already.
        self._form_inside = client.form_with(inside, repeated_through=planned.after)
        self._diff: Artifact | None = None
        self._pieces: Generator[Piece, None, None] = pieces(
            chain,
            self._changes,
            planned.first_sequence,
            with_old=form.wants_old,
            stay_before=not form.extended,
        )
        self._coming = self._archive.submit(self._next)
        self._began_at = time.monotonic()
        self._ended = False
        after = planned.first_sequence - 1 if chain.entries else planned.after
        client.resume(after, chain.before)

    async def step(self, view: TableView) -> bool:
        """Send the next piece, or wait for it a while; False once all was sent, and the journal
        comes next.

        :raises SnapshotNeeded: the archive can't be read after all.
        """
        client = self._client
        coming = asyncio.wrap_future(self._coming)
        coming.add_done_callback(_retrieved)
        await asyncio.wait({coming}, timeout=CHECK_EVERY_S)
        if coming.done():
            piece = self._came(coming)
            if piece is None:
                self._finish()
                return False
            # The next one is read while this one is on its way.
            self._coming = self._archive.submit(self._next)
            await self._send_piece(piece)
        elif self._coming.running() and time.monotonic() - self._began_at > _PATIENCE_S:
            hangs = TimeoutError(f"the archive wasn't read within {_PATIENCE_S:g} s")
            self._break(hangs)
            raise SnapshotNeeded("the replay from the archive hangs") from hangs
        else:
            # The session waits for the archive, not for the client.
            client.moved()
        # The depth includes the journal's changes.
        client.show("replaying", self._left + max(view.sequence - self._plan.after, 0))
        if client.heartbeats.due:
            await client.send_heartbeat()
        return True

    def _came(self, coming: asyncio.Future[Piece | None]) -> Piece | None:
        try:
            return coming.result()
        except Exception as failure:
            self._break(failure)
            raise SnapshotNeeded("the replay from the archive failed") from failure

    async def _send_piece(self, piece: Piece) -> None:
        record = piece.record
        if record is not None:
            form = self._form_inside if piece.inside else self._client.form
            await self._client.send_all(await slices.run(form.changes(record)))
            self._client.cursor = record.last_sequence
            self._left -= len(record)
        if piece.complete is not None:
            self._client.position = piece.complete

    def _finish(self) -> None:
        self._ended = True
        self._client.cursor = self._plan.after
        self._client.position = self._plan.chain.through
        # At once, so that the client knows where it is although nothing may follow.
        self._client.heartbeats.due = True
        self._archive.count(Outcome.COMPLETE)

    def _break(self, failure: Exception) -> None:
        self._ended = True
        if self._diff is not None:
            self._archive.broken(self._diff)
        self._archive.count(Outcome.BROKEN)
        expected = isinstance(failure, ArchiveError | OSError)
        log.warning(
            "archive replay failed; snapshot scheduled",
            table=self._archive.table,
            position=position.text(self._client.position),
            error=str(failure),
            exc_info=None if expected else failure,
        )

    def close(self) -> None:
        """Release what the replay holds; one that isn't done counts as left by the client."""
        if not self._ended:
            self._archive.count(Outcome.LEFT)
            self._ended = True
        # A read under way ends by itself, and only then may its iterator be closed.
        self._coming.cancel()
        self._coming.add_done_callback(lambda _: self._pieces.close())

    def _next(self) -> Piece | None:
        self._began_at = time.monotonic()
        return next(self._pieces, None)

    def _changes(self, diff: Artifact) -> Iterator[Change]:
        self._diff = diff
        return self._archive.changes(self._plan.found, diff, self._plan.view.columns)


def _retrieved(future: asyncio.Future[Piece | None]) -> None:
    """Retrieve the future's error: it may not be awaited, as each step has a future of its own."""
    if not future.cancelled():
        future.exception()
