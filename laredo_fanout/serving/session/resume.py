"""The decision how a client is caught up: its request, the journal, the table's state.

A batch client records its position at a transaction's end, and a repeated change has no effect: it
is sent the entry that it declares again. A base client, made from the .proto by anybody, is not
sent entries that it declares: it may misread a second DELETE, whose row it no longer has. If its
request doesn't show how far it came within a transaction, the transaction is sent again, each
DELETE after its row (`BaseForm`). A base client may also name a snapshot whose end it never saw,
with the sequence that it had before: that snapshot is sent again.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from laredo_fanout.serving.call import CheckedSyncRequest
from laredo_fanout.serving.errors import Behind, Draining, NotReady
from laredo_fanout.serving.ports import Lease
from laredo_fanout.serving.shared import ServingResources
from laredo_fanout.store.environment import SourceIdentity
from laredo_fanout.store.errors import TableUnknown
from laredo_fanout.store.reader import StoreReader, TableView
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import position as position_
from laredo_model.position import Position

_STREAMED = re.compile(r"stream-(\d{1,10})-(\d{1,19})(?:-(\d{1,19}))?\Z")


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """The catch-up mode of a session, and its first cursor."""

    mode: wire.SyncMode
    #: The cursor: the last sequence that the client has; None: a snapshot sets it.
    after: int | None
    #: The client has every transaction up to here.
    position: int
    snapshot_id: str = ""
    #: Reason for a snapshot, for a client that asked to resume.
    because: str = ""
    #: The last entry that a base client may already have; 0: it has none of those to be sent.
    repeated_through: int = 0


def _full(because: str = "") -> ResumePlan:
    return ResumePlan(wire.SYNC_MODE_FULL_SNAPSHOT, None, 0, because=because)


def streamed_snapshot_id(table_id: int, sequence: int, asked: CheckedSyncRequest) -> str:
    """The id of a snapshot sent within a stream: what `last_snapshot_id` may name later.

    It ends with the sequence that the client declared, if it had come as far as the snapshot.
    """
    snapshot_id = f"stream-{table_id}-{sequence}"
    declared = asked.sequence or 0
    return snapshot_id if declared < sequence else f"{snapshot_id}-{declared}"


def is_streamed(snapshot_id: str) -> bool:
    """True if the id is that of a snapshot sent within a stream."""
    return _STREAMED.match(snapshot_id) is not None


def ahead(asked: CheckedSyncRequest, view: TableView, source: SourceIdentity) -> bool:
    """True if the client's position is ahead of the store's, in the same history."""
    if asked.position is None or not same_history(asked, source):
        return False
    return asked.position > view.position


def plan(
    asked: CheckedSyncRequest,
    view: TableView,
    source: SourceIdentity,
    reader: StoreReader,
    of_snapshot: int | None,
) -> ResumePlan:
    """The first catch-up mode that fits a client that isn't `ahead`.

    Position wins over sequence, sequence over snapshot id. `of_snapshot`: the newest entry
    in the periodic snapshot that the client names; None: it names none that is known.

    :raises NotReady: only a snapshot would do, and the table is being copied again.
    """
    found = _resume(asked, view, source, reader, of_snapshot)
    if found.after is None and not view.live:
        raise not_ready(view)
    return found


def not_ready(view: TableView) -> NotReady:
    """The error of a table that can't be served just now."""
    because = f": {view.error}" if view.error else ""
    return NotReady(f"table {view.name} is not ready, its status is {view.status.value}{because}")


def _resume(
    asked: CheckedSyncRequest,
    view: TableView,
    source: SourceIdentity,
    reader: StoreReader,
    of_snapshot: int | None,
) -> ResumePlan:
    if asked.position is not None:
        if not same_history(asked, source):
            return _full(source.because or f"the history is {source.history} now")
        return _by_position(asked, view, source, reader, asked.position)
    if _cut_short(asked):
        return _full("a snapshot was begun in an earlier stream, and its end isn't known")
    if asked.sequence is not None:
        return _by_sequence(asked.sequence, asked, view)
    if asked.snapshot_id:
        return _by_snapshot(asked.snapshot_id, view, of_snapshot)
    return _full()


def _by_position(
    asked: CheckedSyncRequest,
    view: TableView,
    source: SourceIdentity,
    reader: StoreReader,
    position: Position,
) -> ResumePlan:
    suspect = asked.boundaries and view.suspect(position)
    if suspect or not view.leads_on_from(position):
        return _full(missed(position, view, source))
    ownership = reader.ownership()
    if ownership is not None and ownership.doubts_at(position):
        return _full("another server read the slot then, and may have shown other rows")
    if not asked.batch:
        return _by_inclusive_position(asked, view, source, reader, position)
    first = reader.sequence_after_position(view.id, position)
    if ownership is not None and _contradicts(asked, view, first - 1):
        return _full("another server had sent other changes up to that position")
    return ResumePlan(wire.SYNC_MODE_DELTA, first - 1, position)


def _contradicts(asked: CheckedSyncRequest, view: TableView, sequence: int) -> bool:
    """True if the client had another number of entries at its position than this server, whose
    newest entry there is ``sequence``. Servers of one slot number entries alike, but for repairs.

    Changes that were replayed from an archive have numbers below the journal's.
    """
    had = asked.sequence
    if had is None or asked.filtered or had < view.oldest_sequence - 1:
        return False
    return had != sequence


def _by_inclusive_position(
    asked: CheckedSyncRequest,
    view: TableView,
    source: SourceIdentity,
    reader: StoreReader,
    position: Position,
) -> ResumePlan:
    """A base client may have stopped in the middle of the transaction at ``position``.

    It gets the rest of it if its sequence is one of that transaction, else all of it again: the
    sequence is another server's then. A filter lets a client come to later ones without an entry.
    """
    first = reader.sequence_after_position(view.id, position, inclusive=True)
    beyond = reader.sequence_after_position(view.id, position)
    upto = view.sequence if asked.filtered else beyond - 1
    sequence = asked.sequence
    if sequence is not None and not first - 1 <= sequence <= upto:
        sequence = None
    # The entries at the floor are pruned, and the last of them was oldest_sequence - 1.
    if position == view.floor and sequence is None:
        return _full(missed(position, view, source))
    if sequence is None:
        return ResumePlan(wire.SYNC_MODE_DELTA, first - 1, position, repeated_through=beyond - 1)
    return ResumePlan(wire.SYNC_MODE_DELTA, sequence, position)


def _cut_short(asked: CheckedSyncRequest) -> bool:
    """True if a base client may have lost its stream in the middle of the snapshot that it names.

    At the snapshot's end it has the snapshot's sequence, until then the one that it had before.
    """
    named = _STREAMED.match(asked.snapshot_id)
    if asked.batch or named is None:
        return False
    of_snapshot, declared = int(named[2]), int(named[3] or 0)
    sequence = asked.sequence or 0
    return sequence < of_snapshot or sequence == declared


def _by_sequence(sequence: int, asked: CheckedSyncRequest, view: TableView) -> ResumePlan:
    if not view.oldest_sequence - 1 <= sequence <= view.sequence:
        return _full(f"the journal begins at sequence {view.oldest_sequence}")
    after = max(sequence, view.oldest_sequence) - 1 if asked.batch else sequence
    return ResumePlan(wire.SYNC_MODE_DELTA, after, view.floor)


def _by_snapshot(snapshot_id: str, view: TableView, of_snapshot: int | None) -> ResumePlan:
    streamed = _STREAMED.match(snapshot_id)
    if streamed is None:
        sequence = of_snapshot
    else:
        sequence = int(streamed[2]) if int(streamed[1]) == view.id else None
    if sequence is None or not view.oldest_sequence - 1 <= sequence <= view.sequence:
        return _full("the journal doesn't reach back to that snapshot")
    return ResumePlan(wire.SYNC_MODE_DELTA_FROM_SNAPSHOT, sequence, view.floor, snapshot_id)


def missed(position: int, view: TableView, source: SourceIdentity) -> str:
    """Reason why the changes after ``position`` of this history can't be sent."""
    if source.because and position < source.since:
        return source.because
    if view.skips(position):
        return "this relay was down then, and has the changes of that time as one transaction"
    if view.suspect(position) and position >= view.floor:
        return "rows that had moved with a partition were repaired after that position"
    return (
        f"the journal is complete from {position_.text(view.floor)} on: older entries were"
        " pruned, or the table was copied again"
    )


def same_history(asked: CheckedSyncRequest, source: SourceIdentity) -> bool:
    """True if the client's position belongs to the history of this store."""
    if asked.position is None:
        return True
    if asked.history is not None:
        return source.lineage.holds(asked.history, asked.position)
    # A base client can't send its history: it is taken for ours, so that one that is ahead of a
    # lagging server waits and never gets an older snapshot. But where a former history of this
    # store had got as far, only a sequence decides which history the position is of: sequences
    # continued from larger numbers.
    if asked.position > source.former_reach:
        return True
    return (asked.sequence or 0) >= source.former_sequences


async def caught_up_view(
    shared: ServingResources, asked: CheckedSyncRequest, lease: Lease
) -> tuple[TableView, SourceIdentity]:
    """Read the table, once the store has caught up with the client.

    :raises NotReady: it isn't shown yet.
    :raises Behind: it stayed behind for `behind_wait_s`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + shared.listener.behind_wait_s
    while True:
        woken = shared.wakeups.current()
        # The tail may be a wake-up behind: with the table read first here, the session
        # never begins with an older state than it ends with.
        view, source = read_table(shared, asked.table)
        if not ahead(asked, view, source):
            return view, source
        lease.update(sequence=0, depth=0, state="waiting")
        left = deadline - loop.time()
        if left <= 0:
            raise Behind(
                f"behind: this server is at {position_.text(view.position)}, the client at "
                f"{position_.text(asked.position or 0)} of the same history; "
                "try again, or another server"
            )
        if shared.drain.deadline_ms:
            raise Draining("the server is draining: connect elsewhere")
        await asyncio.wait([woken], timeout=left)


def read_table(shared: ServingResources, table: str) -> tuple[TableView, SourceIdentity]:
    """The table and its source as they are now.

    :raises NotReady: it isn't shown.
    """
    try:
        view = shared.reader.table(table)
    except TableUnknown as error:
        raise NotReady(f"table {table} is not ready, its copy hasn't started") from error
    source = shared.reader.source()
    if not view.shown or source is None:
        raise not_ready(view)
    return view, source
