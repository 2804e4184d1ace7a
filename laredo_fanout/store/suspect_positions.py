"""Stretches of positions in which a partitioned table's rows may be wrong: begun, ended, forgotten.

A stretch begins at the last verified position, once something has shown that rows went or came
with a partition. It ends at the barrier of a re-copy, where what differs has entered the journal.
"""

from dataclasses import replace

from laredo_fanout.store.table import Doubt, TableRecord

_KEPT = 8
"""However old they are: a session may stand within one of them."""


def begun(record: TableRecord, start: int, because: str) -> TableRecord:
    """From ``start`` on the rows may be wrong.

    One that ended beyond ``start`` goes on with it: what put it right may have been wrong.
    """
    kept = [each for each in record.doubts if each.end <= start]
    start = min([start, *(each.start for each in record.doubts if each.end > start)])
    return replace(record, doubts=(*kept, Doubt(start, because)))


def once_more(record: TableRecord, because: str) -> TableRecord:
    """Rows moved while the re-copy is made that is to put the others right."""
    doubt = record.doubt
    assert doubt is not None
    return replace(
        record, doubts=(*record.doubts[:-1], doubt._replace(because=because, again=True))
    )


def ended(record: TableRecord, first: int, position: int, time_us: int) -> TableRecord:
    """What differed is put right at ``position``, unless more must be; ``first`` is the first entry
    beyond the start."""
    doubt = record.doubt
    assert doubt is not None
    if doubt.again:
        return replace(record, doubts=(*record.doubts[:-1], doubt._replace(again=False)))
    over = doubt._replace(first=first, last=record.sequence, end=position, end_time_us=time_us)
    return replace(record, doubts=(*record.doubts[:-1], over))


def pruned(record: TableRecord) -> TableRecord:
    """Without those of which the journal has nothing any more."""
    older, newest = record.doubts[:-_KEPT], record.doubts[-_KEPT:]
    kept = [each for each in older if each.last >= record.oldest_sequence]
    return replace(record, doubts=(*kept, *newest))
