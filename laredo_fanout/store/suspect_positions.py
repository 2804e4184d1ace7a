"""Suspect ranges: positions at which a partitioned table's rows may be wrong.

A range begins at the last verified position, once something has shown that rows went or came
with a partition. It ends at the barrier of a re-copy, where what differs has entered the journal.
"""

from dataclasses import replace

from laredo_fanout.store.table import SuspectRange, TableRecord

_KEPT = 8
"""However old they are: a session may stand within one of them."""


def begun(record: TableRecord, start: int, because: str) -> TableRecord:
    """From ``start`` on the rows may be wrong.

    One that ended beyond ``start`` goes on with it: what repaired it may have been wrong.
    """
    kept = [each for each in record.suspect_ranges if each.end <= start]
    start = min([start, *(each.start for each in record.suspect_ranges if each.end > start)])
    return replace(record, suspect_ranges=(*kept, SuspectRange(start, because)))


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
    """What differed is repaired at ``position``, unless more must be; ``first`` is the first entry
    beyond the start."""
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
