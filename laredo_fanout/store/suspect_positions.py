"""Suspect ranges: positions at which a partitioned table's rows may be wrong.

A range begins at the last verified position, once something has shown that rows went or came
with a partition. It ends at the barrier of a re-copy, where what differs has entered the journal.
"""

from dataclasses import replace

from laredo_fanout.store.table import SuspectRange, TableRecord

_KEPT = 8
"""However old they are: a session may be within one of them."""
_MOST = 64
"""Number of ranges beyond which a new one goes on from the one before it."""


def begun(record: TableRecord, start: int, because: str, *, unseen_after: int = 0) -> TableRecord:
    """From ``start`` on the rows may be wrong; ``unseen_after``: beyond it they were never here.

    One that ended beyond ``start`` goes on with it: what repaired it may have been wrong.
    """
    kept = [each for each in record.suspect_ranges if each.end <= start]
    merged = record.suspect_ranges[len(kept) :]
    if len(kept) >= _MOST and kept[-1].end == start:
        merged = (kept.pop(), *merged)
    start = min([start, *(each.start for each in merged)])
    unseen = [each.unseen_after for each in merged if each.unseen_after]
    if unseen_after:
        unseen.append(unseen_after)
    begins = SuspectRange(start, because, unseen_after=min(unseen, default=0))
    return replace(record, suspect_ranges=(*kept, begins))


def once_more(record: TableRecord, because: str) -> TableRecord:
    """Rows moved while the re-copy is made that is to repair the others."""
    suspect_range = record.suspect_range
    assert suspect_range is not None
    return replace(
        record,
        suspect_ranges=(
            *record.suspect_ranges[:-1],
            suspect_range._replace(because=because, again=True),
        ),
    )


def ended(record: TableRecord, first: int, position: int, time_us: int) -> TableRecord:
    """End the suspect range at ``position``, where differences are repaired.

    If another repair must follow, the range goes on. ``first`` is the first entry after its start.
    """
    suspect_range = record.suspect_range
    assert suspect_range is not None
    if suspect_range.again:
        return replace(
            record,
            suspect_ranges=(*record.suspect_ranges[:-1], suspect_range._replace(again=False)),
        )
    over = suspect_range._replace(
        first=first, last=record.sequence, end=position, end_time_us=time_us
    )
    return replace(record, suspect_ranges=(*record.suspect_ranges[:-1], over))


def pruned(record: TableRecord) -> TableRecord:
    """Without those of which the journal has nothing any more."""
    older, newest = record.suspect_ranges[:-_KEPT], record.suspect_ranges[-_KEPT:]
    kept = [each for each in older if each.last >= record.oldest_sequence]
    return replace(record, suspect_ranges=(*kept, *newest))
