"""One table of a relay: rows and history from its upstream, written into the open batch.

Rows and changes are stored byte for byte. A snapshot fills an incarnation of its own. If its
columns are those of the live one, only the rows that differ enter that one's journal, as one
transaction at the snapshot's position. The positions that were missed become a suspect range: no
client may resume within it, as the differences don't continue the states in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import structlog

from laredo_fanout.client.errors import ProtocolViolation
from laredo_fanout.client.events import (
    Changes,
    Event,
    Handshake,
    Heartbeat,
    HolderState,
    SchemaChange,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotRows,
)
from laredo_fanout.relay.path import UpstreamTooOld
from laredo_fanout.store.barrier import CopyComparison
from laredo_fanout.store.environment import LastRecopy, SourceIdentity
from laredo_fanout.store.rows import TableChanges
from laredo_fanout.store.table import Status
from laredo_model import position as position_
from laredo_model.checksum import StateChecksum
from laredo_model.line import Action

if TYPE_CHECKING:
    from laredo_fanout.batch.status import Counters
    from laredo_fanout.batch.write_batch import WriteBatch
    from laredo_fanout.source_options import SourceTableOptions
    from laredo_fanout.store.table import TableRecord
    from laredo_fanout.store.writer import Store
    from laredo_model.column import Column

_log = structlog.get_logger()

_FIRST_BYTE, _OBJECT = itemgetter(0), frozenset(b"{")
_NOT_COMPARED = "the snapshot replaced all rows without a comparison"
_REPLACES_MORE = "the changes that were missed came as one transaction"


class StartOver(Exception):
    """The stream can't continue the table's rows: the next request asks for a snapshot."""


@dataclass
class _ReceivedSnapshot:
    """A snapshot on its way: the incarnation that it fills, and the checksum of its rows so far."""

    table_id: int
    expected_rows: int
    reason: str
    sequence: int
    holder: HolderState | None
    received: StateChecksum = field(default_factory=StateChecksum)


class ReceivedTable:
    """Writes one table's events. While ``is_open`` the batch must not be committed, even after an
    error."""

    def __init__(
        self,
        options: SourceTableOptions,
        batch: WriteBatch,
        counters: Counters,
        records: Callable[[], dict[int, TableRecord]],
        *,
        server: str,
        count_snapshot: Callable[[str], None],
        standby: bool = False,
    ) -> None:
        """``standby``: the rows get the upstream's sequences, for a takeover of the slot."""
        self._standby = standby
        self.options = options
        self._batch = batch
        self._counters = counters
        self._records = records
        self._server = server
        self._count_snapshot = count_snapshot
        self._columns: tuple[Column, ...] = ()
        self._copy: _ReceivedSnapshot | None = None
        self._shown_id = 0
        """Id of the incarnation that clients saw last; 0: not known."""
        self.is_open = False
        """True if a transaction is written in part."""
        self.upstream_position = 0
        """Highest known position of the upstream."""
        self.forgets = False
        """True if the next request asks for a snapshot, whatever the table has."""
        self.incarnation = 0
        """For a standby: the upstream's incarnation of these rows; 0: not known yet."""
        self._take: dict[type, Callable[[Any], None]] = {
            Handshake: self._handshake,
            SnapshotBegin: self._snapshot_begin,
            SnapshotRows: self._snapshot_rows,
            Changes: self._changes,
            Heartbeat: self._heartbeat,
            SchemaChange: self._schema_change,
        }

    @property
    def record(self) -> TableRecord | None:
        """The incarnation that clients see, with the changes of the open batch."""
        records, name = self._records(), self.options.qualified
        # Each event asks for it. An aborted batch's id may be another table's now.
        known = records.get(self._shown_id)
        if known is not None and known.shown and known.qualified == name:
            return known
        shown = [r for r in records.values() if r.qualified == name and r.shown]
        found = max(shown, key=lambda r: r.incarnation, default=None)
        self._shown_id = 0 if found is None else found.id
        return found

    @property
    def position(self) -> int | None:
        """Position to resume from; None if a snapshot is needed."""
        record = self.record
        live = record is not None and record.live and not self.forgets and not record.damage
        return record.position if live and record is not None else None

    @property
    def copy_rows(self) -> tuple[int, int] | None:
        """Received and expected rows of a snapshot; None if none is being received."""
        copy = self._copy
        return None if copy is None else (copy.received.rows, copy.expected_rows)

    @property
    def between_transactions(self) -> bool:
        """True if nothing is written in part."""
        return not self.is_open and self._copy is None

    def take(self, event: Event) -> Iterator[None]:
        """Write an event; yields after each bounded piece of work.

        At a yield the batch may be committed, unless ``is_open``.

        :raises StartOver: if the stream doesn't go on from what is here.
        :raises ProtocolViolation: if it contradicts itself.
        :raises StoreError: if the store can't be written.
        """
        if isinstance(event, SnapshotEnd):
            yield from self._snapshot_end(event)
        elif (take := self._take.get(type(event))) is not None:
            take(event)

    def drop_copy(self) -> None:
        """Drop the rows of a snapshot that hasn't ended."""
        copy, self._copy = self._copy, None
        if copy is not None and copy.table_id in self._records():
            self._batch.transaction.drop_table(copy.table_id)

    # ------------------------------------------------------------ events

    def _handshake(self, event: Handshake) -> None:
        self._columns = event.columns
        # Not the maximum of all streams: a wrong server's claim ends with its stream.
        self.upstream_position = event.position or 0
        if event.snapshot_follows:
            return
        if self.position is None:
            raise self._violation(f"{event.mode.name} to a request for a snapshot")
        record = self.record
        if record is None or not record.live or record.columns != event.columns:
            raise StartOver
        if self._standby:
            if event.resume_from_sequence != record.sequence + 1:
                self._out_of_step(event.resume_from_sequence)
            self._define(record.id, event.holder)
        self._verified(event.boundary)

    def _schema_change(self, event: SchemaChange) -> None:
        self._columns = event.new

    def _snapshot_begin(self, event: SnapshotBegin) -> None:
        if self.is_open:
            raise self._violation("a snapshot within a transaction")
        self.drop_copy()
        self._count_snapshot(self.options.qualified)
        record, transaction = self.record, self._batch.transaction
        _log.info(
            "snapshot received",
            table=self.options.qualified,
            rows=event.row_count,
            position=None if event.position is None else position_.text(event.position),
            reason=event.reason or ("asked for" if record is not None else "there are no rows yet"),
        )
        if record is not None and record.live and record.columns != self._columns:
            closed = replace(record, status=Status.CLOSED, closed_at=record.position)
            transaction.put_table(closed)
            self._batch.touch(record.id)
        copy = transaction.add_table(self.options.schema, self.options.name, 0, self._columns)
        self._copy = _ReceivedSnapshot(
            copy.id, event.row_count, event.reason, event.sequence, event.holder
        )

    def _snapshot_rows(self, event: SnapshotRows) -> None:
        copy = self._expected_copy("rows")
        self._check_lines(event.lines)
        copy.received.add(event.lines)
        self._batch.transaction.fill(copy.table_id, event.keys, event.lines)
        counted = self._counters.copied_rows
        name = self.options.qualified
        counted[name] = counted.get(name, 0) + len(event.lines)

    def _snapshot_end(self, event: SnapshotEnd) -> Iterator[None]:
        copy, position = self._expected_copy("the end"), event.position
        received = copy.received
        if position is None or event.state_checksum is None:
            raise self._violation("a snapshot without position or checksum")
        if (received.rows, received.hex()) != (event.rows, event.state_checksum):
            self.drop_copy()
            raise self._violation(
                f"a snapshot at {position_.text(position)} of {event.rows} rows with checksum"
                f" {event.state_checksum}, but {received.rows} with {received.hex()} came"
            )
        record = self.record
        if (
            not self._standby
            and record is not None
            and record.live
            and record.columns == self._columns
            and record.position <= position
            and (yield from self._compared(record, copy, position))
        ):
            live_id = record.id
        else:
            live_id = self._batch.transaction.publish(copy.table_id, position, 0).id
            if self.forgets and record is not None:
                self._ended(LastRecopy(time.time(), error=_NOT_COMPARED))
            if record is not None and record.position > position:
                # The upstream is behind the positions that it sent before: go back with it.
                transaction = self._batch.transaction
                transaction.position = min(transaction.position, position)
                self.upstream_position = position
            if self._standby:
                # Its entries begin here, with the upstream's numbers.
                self._batch.transaction.set_sequence(live_id, copy.sequence)
                self._define(live_id, copy.holder)
        self._copy, self.is_open, self._shown_id = None, False, live_id
        self._batch.transaction.set_table_position(live_id, position)
        self._batch.touch(live_id)
        self._seen(position)
        self._verified(event.boundary)
        self.forgets = False

    def _compared(
        self, record: TableRecord, copy: _ReceivedSnapshot, position: int
    ) -> Generator[None, None, bool]:
        """Write the differences from the snapshot; False if they can't be written as changes."""
        comparison = CopyComparison(self._batch.transaction, copy.table_id, position)
        while comparison.compare_block(self._batch.transaction):
            yield
        while comparison.prove_block(self._batch.transaction):
            yield
        if not comparison.is_proven:
            # The stored rows were damaged on disk.
            return False
        if record.position == position and comparison.differs and not comparison.takes_rows:
            # Clients at this position would ignore changes of the same position.
            return False
        # From here on it is one transaction, which is committed as a whole.
        self.is_open = True
        transaction = self._batch.transaction
        if record.position < position:
            transaction.begin_suspect_range(
                record.id,
                copy.reason or "a snapshot was compared with the stored rows",
                unseen=True,
            )
        # The commit times of the differences are unknown.
        now_us = time.time_ns() // 1000
        yield from comparison.publish(transaction, now_us)
        differing = comparison.differing
        name = self.options.qualified
        self._counters.recopied_rows[name] = self._counters.recopied_rows.get(name, 0) + differing
        self._ended(LastRecopy(time.time(), differing))
        _log.info("snapshot compared", table=name, differing=differing)
        return True

    def _ended(self, last: LastRecopy) -> None:
        """Note the result of a re-copy."""
        name = self.options.qualified
        self._batch.transaction.set_last_recopy(name, last)
        self._counters.last_recopies[name] = last

    def _changes(self, event: Changes) -> None:
        record = self.record
        if record is None or not record.live or self._copy is not None:
            raise self._violation("changes before the end of the snapshot")
        changes = event if event.since is not None else event.beyond(record.position)
        if changes is None:
            return
        self._check_lines(changes.lines)
        if self._standby and changes.actions and changes.first_sequence != record.sequence + 1:
            self._out_of_step(changes.first_sequence)
        if changes.since is not None and changes.positions[0] < record.position:
            raise self._violation("changes of positions that it has sent before")
        transaction = self._batch.transaction
        if changes.since is not None and record.suspect_range is None:
            transaction.begin_suspect_range(record.id, _REPLACES_MORE, unseen=True)
        transaction.apply(record.id, _table_changes(changes))
        self.is_open = changes.open
        for action in Action:
            self._counters.changes[action] += changes.actions.count(action)
        whole = len(changes.counts) - changes.open
        if whole:
            position, time_us = changes.positions[whole - 1], changes.times_us[whole - 1]
            if changes.since is not None:
                transaction.end_suspect_range(record.id, position, time_us)
            transaction.set_table_position(record.id, max(position, record.position))
            transaction.time_us = max(transaction.time_us, time_us)
            self._seen(position)
        self._batch.touch(record.id)

    def _heartbeat(self, event: Heartbeat) -> None:
        self._seen(event.position)
        record = self.record
        if record is None or not record.live or not self.between_transactions:
            return
        if event.position is not None and event.position > record.position:
            self._batch.transaction.set_table_position(record.id, event.position)
            self._batch.touch(record.id)
        self._verified(event.boundary)

    # ------------------------------------------------------------ parts

    def _define(self, table_id: int, holder: HolderState | None) -> None:
        """Take the table's definition: this server may have to go on from the slot with it."""
        if holder is None:
            raise UpstreamTooOld(self._server)
        state, transaction = _holder_state(holder, self._server), self._batch.transaction
        record = transaction.tables[table_id]
        now = replace(record, oid=state.oid, identity=state.identity, copy=state.copy)
        if now != record:
            transaction.put_table(now)
            self._batch.touch(table_id)
        known = transaction.ownership
        if known is not None and not state.doubts <= set(known.doubts):
            transaction.ownership = known.doubting(state.doubts)
            self._batch.touch(table_id)
        self.incarnation = holder.incarnation

    def _out_of_step(self, sequence: int) -> None:
        """:raises StartOver: the upstream's next entry isn't the next one of this table."""
        record = self.record
        _log.warning(
            "table out of step with the holder; snapshot scheduled",
            table=self.options.qualified,
            sequence=0 if record is None else record.sequence,
            next=sequence,
        )
        raise StartOver

    def _verified(self, boundary: int | None) -> None:
        record = self.record
        if record is not None and boundary:
            # Positions that aren't here yet can't be verified.
            self._batch.verified(record.id, min(boundary, self.upstream_position))

    def _check_lines(self, lines: list[bytes]) -> None:
        """:raises ProtocolViolation: if one of them can't be a row's line."""
        if not set(map(_FIRST_BYTE, filter(None, lines))) <= _OBJECT:
            raise self._violation("an invalid row")

    def _seen(self, position: int | None) -> None:
        self.upstream_position = max(self.upstream_position, position or 0)

    def _expected_copy(self, what: str) -> _ReceivedSnapshot:
        if self._copy is None:
            raise self._violation(f"{what} of a snapshot that hasn't begun")
        return self._copy

    def _violation(self, what: str) -> ProtocolViolation:
        return ProtocolViolation(self._server, f"sent {what} (table {self.options.qualified})")


def _table_changes(changes: Changes) -> TableChanges:
    return TableChanges(
        bytearray(changes.actions),
        changes.keys,
        changes.lines,
        list(changes.counts),
        list(changes.positions),
        list(changes.times_us),
        changes.open,
    )


class _ParsedState(NamedTuple):
    """The holder's state, parsed."""

    source: SourceIdentity
    oid: int
    identity: str
    copy: dict[str, Any]
    doubts: set[tuple[int, int]]


def _holder_state(sent: HolderState, server: str) -> _ParsedState:
    """:raises ProtocolViolation: if it can't be read."""
    try:
        source, defined = orjson.loads(sent.source), orjson.loads(sent.definition)
        return _ParsedState(
            SourceIdentity.from_json(source),
            int(defined["oid"]),
            str(defined["identity"]),
            dict(defined["copy"]),
            {(int(first), int(end)) for first, end in source["doubts"]},
        )
    except (AttributeError, KeyError, TypeError, ValueError) as wrong:
        raise ProtocolViolation(server, f"sent an unreadable holder's state: {wrong!r}") from wrong


def of_upstream(handshake: Handshake, server: str, known: SourceIdentity | None) -> SourceIdentity:
    """The source's identity for a store that follows the history of the handshake.

    :raises UpstreamTooOld: if the handshake doesn't name the history's origin.
    :raises ProtocolViolation: if the holder's state can't be read.
    """
    if handshake.holder is not None:
        holder = _holder_state(handshake.holder, server).source
        if known is None:
            return holder
        return replace(
            holder,
            former_reach=max(holder.former_reach, known.former_reach),
            former_sequences=max(holder.former_sequences, known.former_sequences),
        )
    origin, history = handshake.origin, handshake.history
    if origin is None or history is None:
        raise UpstreamTooOld(server)
    # Servers of one database began with its history at different positions, for other reasons.
    same = known if known is not None and known.history == history else origin
    return SourceIdentity(
        history=history,
        slot="",
        publication="",
        ancestors=origin.ancestors,
        because=same.because,
        since=same.since,
        former_reach=0 if known is None else known.former_reach,
        former_sequences=0 if known is None else known.former_sequences,
    )


def adopt(store: Store, now: SourceIdentity) -> None:
    """Have the store follow this history from now on, durably.

    A table's rows stay if its position is part of the new history. Otherwise the table is dropped,
    and copied again.
    """
    known, position, time_us = store.source, store.position, store.time_us
    reach = 0
    with store.transaction() as transaction:
        for record in list(transaction.tables.values()):
            at = record.position or position
            if record.live and known is not None and now.lineage.holds(known.history, at):
                transaction.set_table_position(record.id, at)
                continue
            if record.status is not Status.COPYING:
                reach = max(reach, at)
            transaction.drop_table(record.id)
        if reach:
            # Tables begin again with it, and their sequences with the time in microseconds.
            now = replace(
                now,
                former_reach=max(reach, now.former_reach),
                former_sequences=time.time_ns() // 1000,
            )
        transaction.set_source(now)
        if not reach and position:
            transaction.set_position(position, time_us)
    if known is not None and known.history != now.history:
        _log.warning(
            "upstream history changed",
            history=str(now.history),
            before=str(known.history),
            position=position_.text(position),
            reason=now.because or "it goes on from the one before",
        )
