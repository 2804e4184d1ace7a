"""One table's definition and figures, as a reader of the store sees them at one moment."""

from dataclasses import dataclass

from laredo_fanout.store.table import Status, TableRecord
from laredo_model.column import Column


@dataclass(frozen=True, slots=True)
class TableView:
    """A table's record, and up to where it is shown."""

    #: The incarnation.
    record: TableRecord
    #: The store's, or a relay's for this table, or the one at which a closed table stopped.
    position: int
    #: The newest commit time in the store, microseconds since 1970.
    time_us: int

    @property
    def id(self) -> int:
        """The incarnation's id; another one means another schema, or another copy."""
        return self.record.id

    @property
    def name(self) -> str:
        """``schema.name``."""
        return self.record.qualified

    @property
    def status(self) -> Status:
        """State of the incarnation."""
        return self.record.status

    @property
    def shown(self) -> bool:
        """True if clients see it: LIVE, or CLOSED while its next incarnation is copied."""
        return self.record.shown

    @property
    def live(self) -> bool:
        """True if changes still come."""
        return self.record.live

    @property
    def error(self) -> str:
        """Reason of its failure."""
        return self.record.error

    @property
    def columns(self) -> tuple[Column, ...]:
        """In the order of the line."""
        return self.record.columns

    @property
    def key_fields(self) -> tuple[str, ...]:
        """The key's columns, in the key's order."""
        return self.record.key_fields

    @property
    def sequence(self) -> int:
        """The newest entry's."""
        return self.record.sequence

    @property
    def oldest_sequence(self) -> int:
        """The oldest kept entry's; sequence + 1 while there is none."""
        return self.record.oldest_sequence

    @property
    def oldest_time_us(self) -> int:
        """The oldest kept entry's commit time; meaningless while there is none."""
        return self.record.oldest_time_us

    @property
    def entries(self) -> int:
        """Number of the journal's entries."""
        return self.record.entries

    @property
    def rows(self) -> int:
        """Number of the table's rows."""
        return self.record.rows

    @property
    def boundary(self) -> int:
        """Last position at which an artifact of the table may end.

        A catalog snapshot of the source has shown that silent DDL rewrote no value up to here. It
        is never after ``position``.
        """
        return min(self.record.boundary, self.position)

    def boundary_at(self, position: int) -> int:
        """Last position at which an artifact may end, for a reader with the rows of ``position``.

        If these rows may differ from the source's for good, it is the last position before them.
        """
        starts = [each.start for each in self.record.suspect_ranges if each.hides(position)]
        return min(self.boundary, *starts) if starts else self.boundary

    def suspect(self, position: int) -> bool:
        """True if the rows of this position may differ from the source's, for good."""
        return any(each.hides(position) for each in self.record.suspect_ranges)

    def leads_on_from(self, position: int) -> bool:
        """True if the journal has every change from the rows at ``position`` to today's."""
        return self.floor <= position <= self.position and not self.skips(position)

    def skips(self, position: int) -> bool:
        """True if this is a relay that has never had the rows of this position."""
        return any(each.skips(position) for each in self.record.suspect_ranges)

    @property
    def floor(self) -> int:
        """From this position on the journal is complete."""
        return self.record.floor


def view_of(record: TableRecord, position: int, time_us: int) -> TableView:
    """The view of a record in a store that is at ``position``."""
    if record.status is Status.CLOSED and record.closed_at:
        # Whatever became of the store's since: after a lost slot it begins again.
        position = record.closed_at
    elif record.position:
        position = record.position
    return TableView(record, position, time_us)


def current(records: list[TableRecord]) -> TableRecord | None:
    """The incarnation that represents a table: the shown one, else the newest."""
    shown = [record for record in records if record.shown]
    return max(shown or records, key=lambda record: record.incarnation, default=None)
