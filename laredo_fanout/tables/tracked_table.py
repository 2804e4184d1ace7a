"""One configured table, as the source follows it."""

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
    from laredo_fanout.source_options import TableOptions
    from laredo_fanout.store.table import TableRecord


@dataclass(eq=False)
class TrackedTable:
    """``table_id`` is the incarnation that takes changes, if there is one."""

    options: TableOptions
    source: SourceTable | None = None
    problem: TableRefused | None = None
    table_id: int | None = None
    shape: Shape | None = None
    version: Version | None = None
    intake: TransactionFilter | None = None
    """Of an append-only table: which transactions it takes."""
    recopy_id: int | None = None
    """The incarnation that is copied beside it because somebody asked for that."""
    closing: str | None = None
    wanted_check: int = 0
    """The CheckRequest that must be answered before it begins again."""
    closed_by_stream: bool = False
    """The stream showed its new form, perhaps before the catalog did."""
    altered_by: frozenset[int] = frozenset()
    """Who the last look saw that may be changing it; a prepared transaction is 0."""
    retries: int = 0
    retry_at: float = 0.0
    partitions_judged: bool = False
    """Whether the last look whose message was passed says what became of its partitions."""
    right_retries: int = 0
    """How often it was begun to put it right."""
    right_at: float = 0.0

    def resume(self, record: TableRecord, snapshot: CatalogSnapshot) -> None:
        """Take up the store's incarnation; ``closing`` says why it can't go on, if it can't."""
        source = snapshot.tables.get(record.qualified)
        kept = shape_.from_json(record.copy)
        self.table_id = record.id
        self.source = source
        if kept is None:
            self.closing = "the store doesn't know its shape"
            return
        self.shape, self.version = kept
        if self.options.append_only:
            self.intake = TransactionFilter(live=record.live)
        if source is None:
            self.closing = "it doesn't exist any more"
        elif (now := shape_.of_table(source)) != self.shape:
            self.closing = self.shape.difference(now)
        elif self.intake is not None and not record.live and "splits" in record.copy:
            self.closing = "its copy was interrupted, and with it its snapshot"
        elif record.live and self.intake is None:
            # What moved with partitions is put right.
            self.closing = source.rewritten_since(self.version)
        else:
            self.closing = source.changed_since(self.version)
