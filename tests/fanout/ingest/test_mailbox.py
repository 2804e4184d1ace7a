"""Messages of other threads to the ingest loop."""

import select

import pytest

from laredo_fanout.ingest.session_tables import Mailbox


def test_what_a_failure_kept_from_being_taken_stays() -> None:
    mailbox: Mailbox[int] = Mailbox()
    for number in (1, 2, 3):
        mailbox.put(number)
    with pytest.raises(ZeroDivisionError):
        for number in mailbox.take():
            assert number / (number - 1)
    assert list(mailbox.take()) == [2, 3]
    mailbox.close()


def test_what_comes_while_it_is_taken_waits_for_the_next_time() -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put(1)
    for number in mailbox.take():
        mailbox.put(number + 1)
    readable, _, _ = select.select([mailbox.fileno()], [], [], 0)
    assert readable and list(mailbox.take()) == [2]
    mailbox.close()


def test_after_the_last_time_nothing_is_taken_and_whoever_leaves_something_knows() -> None:
    mailbox: Mailbox[int] = Mailbox()
    assert mailbox.put(1)
    assert list(mailbox.take_last()) == [1]
    assert not mailbox.put(2)
    assert list(mailbox.take_last()) == []
    mailbox.close()
