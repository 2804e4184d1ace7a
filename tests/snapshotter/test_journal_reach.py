"""Time for which a closed stream can still be resumed."""

from laredo_fanout.client.table_client import TableStatus
from laredo_snapshotter.table.last_flush import JournalReach


def told(oldest: int) -> TableStatus:
    return TableStatus(500, oldest, 500 - oldest, 10, 0)


def test_it_tells_the_time_left_from_the_pace_of_pruning() -> None:
    journal = JournalReach(199)
    first = journal.check(told(100), now=0.0)
    assert (first.reaches, first.seconds_left) == (True, None)
    assert journal.check(told(120), now=10.0).seconds_left == 40.0
    gone = journal.check(told(201), now=20.0)
    assert (gone.reaches, gone.seconds_left) == (False, 0.0)


def test_the_next_entry_is_all_that_is_needed() -> None:
    assert JournalReach(199).check(told(200), now=0.0).reaches is True
    assert JournalReach(None).check(told(200), now=0.0).reaches is None
