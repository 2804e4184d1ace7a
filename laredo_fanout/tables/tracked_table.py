"""One configured table: which incarnation takes its changes, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from laredo_fanout.catalog import shape as shape_
from laredo_fanout.catalog.append_only import TransactionFilter

if TYPE_CHECKING:
    from laredo_fanout.catalog.shape import Shape
    from laredo_fanout.catalog.snapshot import CatalogSnapshot
    from laredo_fanout.catalog.table_definitions import SourceTable
    from laredo_fanout.catalog.table_version import Version
    from laredo_fanout.errors import TableRefused
    from laredo_fanout.source_options import SourceTableOptions
    from laredo_fanout.store.table import TableRecord


@dataclass(eq=False)
class TrackedTable:
    """One configured table in a session, and the incarnation of it that takes changes, if any."""

    #: How it is configured.
    options: SourceTableOptions
    #: How the catalog describes it.
    source: SourceTable | None = None
    #: Why it can't be replicated, if it can't.
    problem: TableRefused | None = None
    #: The incarnation that takes changes.
    table_id: int | None = None
    #: The form that its changes must have.
    shape: Shape | None = None
    #: What shows a silent rewrite of it.
    version: Version | None = None
    #: Of an append-only table: which transactions it takes.
    transaction_filter: TransactionFilter | None = None
    #: The incarnation that is copied beside it because an operator asked, or rows moved.
    recopy_id: int | None = None
    #: Why its incarnation must be closed.
    closing: str | None = None
    #: The CheckRequest that must be answered before it begins again.
    wanted_check: int = 0
    #: The stream showed its new form, perhaps before the catalog did.
    closed_by_stream: bool = False
    #: Pids that held a lock for DDL on it in the last catalog snapshot; a prepared transaction
    #: is 0.
    altered_by: frozenset[int] = frozenset()
    #: How often its copy failed.
    retries: int = 0
    #: When it is tried again (monotonic).
    retry_at: float = 0.0
    #: Whether the last catalog snapshot that was passed says what became of its partitions.
    partitions_judged: bool = False
    #: How often a repair was begun.
    repair_retries: int = 0
    #: When the next one may begin (monotonic).
    repair_at: float = 0.0

    def may_have_been_partition(self, source: SourceTable) -> bool:
        """True if its changes may have come as another table's since the known version."""
        assert self.version is not None
        return source.is_partition or source.version.attributes != self.version.attributes

    def resume(self, record: TableRecord, snapshot: CatalogSnapshot) -> None:
        """Take up the store's incarnation; ``closing`` is the reason why it can't go on, if it
        can't."""
        source = snapshot.tables.get(record.qualified)
        kept = shape_.from_json(record.copy)
        self.table_id = record.id
        self.source = source
        if kept is None:
            self.closing = "the store doesn't know its shape"
            return
        self.shape, self.version = kept
        if self.options.append_only:
            self.transaction_filter = TransactionFilter(live=record.live)
        if source is None:
            self.closing = "it doesn't exist any more"
        elif (now := shape_.of_table(source)) != self.shape:
            self.closing = self.shape.difference(now)
        elif self.transaction_filter is not None and not record.live and "splits" in record.copy:
            self.closing = "its copy was interrupted, and with it its snapshot"
        elif record.live and self.transaction_filter is None:
            # What moved with partitions is repaired.
            self.closing = source.rewritten_since(self.version)
        else:
            self.closing = source.changed_since(self.version)
