"""Cold replay: the diffs of an archive that catch a client up, as journal records.

A client whose position P is below its table's journal would have to be sent the whole table.
If the table is archived, the diffs from P on do as well. They hold net changes, so it must be
proven for each client that they lead to the very rows that the journal would have led it to.

What is given. S(X) is the table after every transaction that ends at or before X, and s(X) one
key's row in it, or its absence. A diff (F, T] contains s(T) of every key with s(F) != s(T), in any
order, each key once; after a TRUNCATE it contains all of S(T). Diffs of an epoch are contiguous,
and an epoch whose base `continues` begins in the state that the one before ended in (the writer
compares rows and checksum). All of it within one history and those that it goes on from, up to
where they were left: positions of other histories mean nothing here.

1. P at a boundary, P = F. The client holds S(F): its keys that the diff doesn't mention have
   s(F) = s(T), the others are set to s(T). So it holds S(T), and so on along the chain.
2. P inside a window, F < P < T. The client holds S(P). A key that didn't change in (F, T] is right.
   One that did and has s(F) != s(T) is mentioned and set, whatever s(P) is. But one that changed
   and changed back has s(F) = s(T): it isn't mentioned, and the client may hold something else (a
   row inserted before P and deleted after it). The diff's entry counts them: `cancelled`. At 0
   there are none, and the client ends at S(T); above 0, or where they weren't counted, it gets a
   snapshot.
3. P inside a window with a TRUNCATE: the diff is the whole table, no smaller than a snapshot of it
   now. And a client that loses its stream after the TRUNCATE and before the last row, and then
   meets another server whose journal reaches back to P, would never see the other rows again,
   if the TRUNCATE was before P. So it gets a snapshot.
4. A base client may have stopped in the middle of the transaction at P (its positions are
   inclusive): it holds S(P') for the transaction before, and some changes of this one. `cancelled`
   counts change by change, so the window that *ends* at or after P and begins before it is one
   that the client is inside of, as in 2, P = T included.
5. A client with a filter holds the rows of S(P) that pass. At a boundary a diff's old and new lines
   are what an ordinary change has: INSERT and DELETE as a row moves into and out of the filter.
   Inside a window the old line is s(F), and the client's row s(P) may have passed although s(F)
   doesn't: so what doesn't pass at T is a DELETE, whether or not the client has the row
   (`RowFilter.of_unknown`).
6. Old rows (want_old) are right at a boundary; inside the window they are s(F), not what the client
   holds. A client that asks for them relies on them, and gets a snapshot.
7. The end H is the newest boundary at or before the server's own position. With floor <= H the
   journal is whole after H and takes over there: entries beyond H, each in the order in which
   they were committed. `seen_position` is a boundary too, the head's state without an artifact: the
   writer raises it while nothing differs from the head. A client *between* head and seen_position
   isn't at the head's state, though: something may have come and gone there, as in 2, uncounted.
8. A client that loses its stream in the middle of a diff names no position within it: a batch
   client's position moves at the end of a transaction, which is the diff; a base client is shown
   the position before for all of it but its last change. So it resumes where it was, and holds
   S(P) with some keys set to s(T) already. Played again, the diff sets them again; a journal that
   reaches back to P has all their changes in order. (A diff with other bounds might mention
   neither: our own client asks for a snapshot then, `Replica.needs_snapshot`.)
9. Sequences. The journal's own are known for entries in the journal only. The replayed changes get
   the numbers just below its oldest entry's, so that none of them is ever taken for an entry: a
   client that resumes by one gets a snapshot, or, by the last, the journal from its oldest entry
   on. From there to the first entry beyond H the numbers leave a gap where H is beyond the floor.
10. Columns. Lines are bytes in the columns' order, so the columns of every epoch on the way must
   be the table's now, in every detail.
11. Merged diffs. A chain may have one in the place of the diffs that it was made from: it is a
   diff as above, with `cancelled` of them all. Where it hides the boundary that a client is at, its
   parts are in its place (ReplayArchive.unfolded): so a client isn't inside a larger window than
   it would be otherwise, and what follows is as few bytes as there are.

While the archive is read the journal is pinned at H (as for a snapshot: until the session is live,
for `pin_limit_s` at most). Should the pin come too late or last too short, the journal says so
(JournalPruned) and a snapshot follows in the same stream, as it does when an object turns out to be
missing or damaged. Objects are fetched whole and proven by their sha256 before a change of them is
sent. A re-base or retention meanwhile changes nothing here: the chain's objects stay for the grace
period, and one that is gone is a missing object. Another history, or another incarnation of the
table, ends the replay like any catch-up.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from laredo_archive.errors import ArtifactDamaged
from laredo_archive.manifest import timeline
from laredo_archive.manifest.model import Artifact, Manifest
from laredo_archive.manifest.timeline import Boundary, Epoch
from laredo_fanout.serving.call import CheckedSyncRequest
from laredo_fanout.store.journal import MAX_BYTES, MAX_CHANGES, Record
from laredo_fanout.store.reader import TableView
from laredo_fanout.wire.replication_pb2 import ChangeBatch
from laredo_model import position
from laredo_model.line import Change
from laredo_model.position import Lineage, Position


class Outcome(StrEnum):
    """The outcome of a replay from an archive."""

    COMPLETE = "complete"  # the client was sent all diffs, and goes on with the journal
    LEFT = "left"  # the client left in the middle
    BROKEN = "broken"  # an object was missing or damaged: a snapshot followed
    UNREADABLE = "unreadable"  # the archive can't be read
    UNCOVERED = "uncovered"  # the archive doesn't lead from the client's position to the journal
    INEXACT = "inexact"  # the client's position is inside a diff that can't be replayed in part
    COLUMNS = "columns"  # the table's columns aren't the archive's


class NoReplay(Exception):
    """No replay is possible, the client gets a snapshot; the message has the reason."""

    def __init__(self, outcome: Outcome, why: str) -> None:
        super().__init__(why)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Chain:
    """The diffs that catch one client up."""

    diffs: tuple[Artifact, ...]
    #: The client's position.
    before: Position
    #: Whether it is inside the first diff's window.
    inside: bool
    #: Where the journal takes over.
    through: Position

    @property
    def entries(self) -> int:
        """Number of changes in these diffs, TRUNCATEs included."""
        return sum((diff.change_count or 0) + diff.truncate for diff in self.diffs)


def chain(
    manifest: Manifest, where: str, asked: CheckedSyncRequest, view: TableView, lineage: Lineage
) -> Chain:
    """Find the diffs that catch this client up, exactly.

    `where`: the manifest's URI, for messages.

    :raises NoReplay: there are none.
    :raises ManifestDamaged: the manifest contradicts itself.
    """
    before = asked.position
    if before is None:
        raise NoReplay(Outcome.UNCOVERED, "the client names no position")
    if manifest.table != view.name:
        raise NoReplay(Outcome.UNCOVERED, f"{where} is the archive of table {manifest.table}")
    ours = _of_lineage(timeline.epochs_of(manifest, where), lineage)
    found = timeline.boundaries(ours)
    if not found:
        raise NoReplay(Outcome.UNCOVERED, f"{where} has nothing of history {lineage.now}")
    start = _start(found, before, inclusive=not asked.batch)
    end, through = _end(found, manifest, view, lineage)
    diffs = timeline.path(ours, start, end) if start.position <= end.position else None
    if diffs is None:
        raise NoReplay(
            Outcome.UNCOVERED, f"the diffs from {start} to {end} in {where} don't follow each other"
        )
    inside = start.position != before
    if inside:
        _check_inside(diffs, asked, before, end)
    _check_columns([epoch for epoch in ours if start.epoch <= epoch.number <= end.epoch], view)
    return Chain(tuple(diffs), before, inside, through)


def _of_lineage(epochs: Sequence[Epoch], lineage: Lineage) -> list[Epoch]:
    return [
        epoch
        for epoch in epochs
        if all(
            artifact.history is not None and lineage.holds(artifact.history, artifact.to_position)
            for artifact in epoch.artifacts
        )
    ]


def _start(found: Sequence[Boundary], before: Position, *, inclusive: bool) -> Boundary:
    """The last boundary whose state the client has certainly reached."""
    upto = before - 1 if inclusive else before
    reached = [boundary for boundary in found if boundary.position <= upto]
    if not reached:
        raise NoReplay(
            Outcome.UNCOVERED,
            f"{position.text(before)} is before the archive's first boundary, {found[0]}",
        )
    return reached[-1]


def _end(
    found: Sequence[Boundary], manifest: Manifest, view: TableView, lineage: Lineage
) -> tuple[Boundary, Position]:
    """The newest boundary that isn't ahead of the server, and where the journal takes over."""
    reached = [
        boundary
        for boundary in found
        if boundary.position <= view.position and not view.skips(boundary.position)
    ]
    if not reached:
        raise NoReplay(
            Outcome.UNCOVERED, f"the archive begins after the server's position, at {found[0]}"
        )
    end = reached[-1]
    if end.position >= view.floor:
        return end, end.position
    seen = manifest.seen_position
    known = (
        seen is not None
        and manifest.history is not None
        and lineage.holds(manifest.history, seen)
        and view.leads_on_from(seen)
    )
    if end == found[-1] and seen is not None and known:
        return end, seen
    raise NoReplay(
        Outcome.UNCOVERED,
        f"the archive ends at {end}, before the journal's floor {position.text(view.floor)}",
    )


def _check_inside(
    diffs: Sequence[Artifact], asked: CheckedSyncRequest, before: Position, end: Boundary
) -> None:
    """Check that the diffs lead a client to ``end`` that is inside the first diff's window.

    :raises NoReplay: they may not.
    """
    at = position.text(before)
    if not diffs:
        raise NoReplay(
            Outcome.INEXACT,
            f"the client's {at} is after {end}, the archive's last: later changes are unknown",
        )
    first = diffs[0]
    if first.to_position < before:
        raise NoReplay(Outcome.UNCOVERED, f"no diff covers {at}, the client's position")
    window = f"the client's {at} is inside the diff that ends at {position.text(first.to_position)}"
    if first.truncate:
        raise NoReplay(Outcome.INEXACT, f"{window}, in which the table was emptied")
    if first.cancelled is None:
        raise NoReplay(Outcome.INEXACT, f"{window}, and its writer didn't count cancelled changes")
    if first.cancelled:
        raise NoReplay(
            Outcome.INEXACT,
            f"{window}, which leaves out the cancelled changes of {first.cancelled} keys",
        )
    if asked.want_old:
        raise NoReplay(Outcome.INEXACT, f"{window}, and the client asked for old rows")


def _check_columns(epochs: Sequence[Epoch], view: TableView) -> None:
    for epoch in epochs:
        if epoch.base.columns != view.columns:
            raise NoReplay(
                Outcome.COLUMNS, f"the columns of epoch {epoch.number} aren't the table's now"
            )


# Converts an archive's diffs to journal records, so that wire forms and filters need no change.
#
# Each diff is one transaction at its end's position, and its `since` is the position after which it
# replaces all transactions. So one without changes is sent, too. A base client is sent the position
# that it had before for all but the last change: should it lose its stream, it resumes with that.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some changes of one diff."""

    #: None for a base client's diff that has none.
    record: Record | None
    #: The diff's position where these are its last changes, else None.
    complete: Position | None
    #: True if the client's position is inside this diff's window.
    inside: bool


def pieces(
    chain: Chain,
    changes: Callable[[Artifact], Iterator[Change]],
    first_sequence: int,
    *,
    with_old: bool,
    stay_before: bool,
) -> Generator[Piece, None, None]:
    """The chain's changes, numbered from `first_sequence`, some at a time.

    `stay_before`: only a diff's last change has its position, as base clients need it.

    :raises ArtifactDamaged: a diff has more changes than in its entry.
    """
    sequence, before, inside = first_sequence, chain.before, chain.inside
    last = first_sequence + chain.entries - 1
    for diff in chain.diffs:
        shown = before if stay_before else diff.to_position
        since = 0 if stay_before else before
        builder = _Builder(diff, shown, since, with_old=with_old)
        for batch, is_last in _batches(changes(diff)):
            if sequence + len(batch) - 1 > last:
                uri = next(iter(diff.formats.values())).uri
                raise ArtifactDamaged(uri, "it has more changes than its manifest entry")
            record = builder.record(batch, sequence, is_last=is_last)
            sequence += len(batch)
            yield Piece(record, diff.to_position if is_last else None, inside)
        if not builder.started:
            nothing = None if stay_before else builder.record([], sequence, is_last=True)
            yield Piece(nothing, diff.to_position, inside)
        before, inside = diff.to_position, False


class _Builder:
    """Builds the records of one diff."""

    def __init__(self, diff: Artifact, shown: Position, since: int, *, with_old: bool) -> None:
        self._position = diff.to_position
        self._shown = shown
        self._since = since
        self._time_us = ((diff.to_time or diff.created_at) - _EPOCH) // timedelta(microseconds=1)
        self._with_old = with_old
        self.started = False

    def record(self, changes: Sequence[Change], sequence: int, *, is_last: bool) -> Record:
        """The next changes; the last ones end the transaction."""
        counts, positions = [len(changes)], [self._shown]
        if is_last and self._shown != self._position:
            counts, positions = [len(changes) - 1, 1], [self._shown, self._position]
            if not counts[0]:
                counts, positions = counts[1:], positions[1:]
        times = [self._time_us] * len(counts)
        body = ChangeBatch(
            first_sequence=sequence,
            actions=bytes(change.action for change in changes),
            counts=counts,
            positions=positions,
            times_us=times,
            open=not is_last,
            keys=[change.key for change in changes],
            lines=[change.new or b"" for change in changes],
            since_position=self._since,
        )
        olds = ChangeBatch(old_lines=[change.old or b"" for change in changes])
        old_body = olds.SerializeToString() if self._with_old else b""
        continues, self.started = self.started, True
        return Record(
            first_sequence=sequence,
            last_sequence=sequence + len(changes) - 1,
            first_position=positions[0],
            last_position=positions[-1],
            last_time_us=self._time_us,
            open=not is_last,
            continues=continues,
            body=body.SerializeToString(),
            old_body=old_body,
        )


def _batches(changes: Iterator[Change]) -> Iterator[tuple[list[Change], bool]]:
    """As many changes as fit a record, and whether they are the last."""
    batch: list[Change] = []
    size = 0
    for change in changes:
        added = len(change.key) + max(len(change.old or b""), len(change.new or b""))
        if batch and (len(batch) == MAX_CHANGES or size + added > MAX_BYTES):
            yield batch, False
            batch, size = [], 0
        batch.append(change)
        size += added
    if batch:
        yield batch, True
