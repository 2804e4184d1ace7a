"""Repair of stores of versions that could release a backlog out of commit order (``ordering =
relaxed``).

In the middle of such a release a table's rows are those of no position: the table is failed, which
has the ingest copy it again, and the backlog's plan is dropped, as some of it can't be released
again. After one the rows are correct, but the journal within isn't in order: it is forgotten up to
its end, so that a client that stands before that gets a snapshot.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import orjson
import structlog

from laredo_fanout.store import layout, meta
from laredo_fanout.store.journal.writing import Journal
from laredo_fanout.store.table import Status, TableRecord
from laredo_fanout.store.write_context import WriteContext

_log = structlog.get_logger(__name__)

_REASON = (
    "an earlier version was stopped in the middle of releasing a backlog out of order"
    " (catchup.ordering = relaxed), which this version can't finish; the table is copied again"
)


class _Disorder(NamedTuple):
    """Journal entries ``first`` to ``last``, of positions beyond ``start`` up to ``end``, aren't in
    order. While it went on, ``last`` and ``end`` were 0, and the space ``marks`` had the positions
    of rows."""

    first: int
    start: int
    marks: int
    last: int = 0
    end: int = 0
    end_time_us: int = 0


def repair(context: WriteContext) -> None:
    """Have every table as strict order leaves it.

    :raises DiskFull: if there is no room for that.
    """
    for record, disorders in list(_disordered(context)):
        newest = disorders[-1]
        if newest.end:
            repaired = _without_journal(record, newest, Journal(context))
        else:
            repaired = _failed(context, record, newest)
        meta.put_table(
            context.transaction, context.databases.meta, context.disk.reserve, repaired, None
        )


def _disordered(context: WriteContext) -> Iterator[tuple[TableRecord, list[_Disorder]]]:
    database = context.databases.meta
    for record in meta.all_tables(context.transaction, database):
        stored = context.transaction.get(meta.DEFINITION + layout.prefix(record.id), db=database)
        if found := orjson.loads(stored).get("disorders"):
            yield record, [_Disorder(*each) for each in found]


def _without_journal(record: TableRecord, newest: _Disorder, journal: Journal) -> TableRecord:
    if newest.last < record.oldest_sequence:
        return record
    return journal.forget(record, newest.last, newest.end)


def _failed(context: WriteContext, record: TableRecord, newest: _Disorder) -> TableRecord:
    context.disk.reserve(2, 0)
    context.discard(meta.GARBAGE_SPACE, newest.marks)
    context.transaction.delete(meta.CATCHUP_KEY, db=context.databases.meta)
    _log.warning("table failed", table=record.qualified, error=_REASON)
    return replace(record, status=Status.FAILED, error=_REASON, copy={})
