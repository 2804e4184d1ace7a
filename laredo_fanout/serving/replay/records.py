"""Converts an archive's diffs to journal records, so that wire forms and filters need no change.

Each diff is one transaction at its end's position, and its `since` is the position after which it
replaces all transactions. So one without changes is sent, too. A base client is sent the position
that it had before for all but the last change: should it lose its stream, it resumes with that.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from laredo_archive.errors import ArtifactDamaged
from laredo_archive.manifest.model import Artifact
from laredo_fanout.serving.replay.plan import Chain
from laredo_fanout.store.journal.record import MAX_BYTES, MAX_CHANGES, Record
from laredo_fanout.wire.replication_pb2 import ChangeBatch
from laredo_model.line import Change
from laredo_model.position import Position

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some changes of one diff."""

    #: None for a base client's diff that has none.
    record: Record | None
    #: The diff's position where these are its last changes, else None.
    complete: Position | None
    #: Whether the client's position is inside this diff's window.
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
