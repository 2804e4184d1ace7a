"""Deletions: what is sent again, and what isn't because its answer would hide an earlier one."""

import pytest

from laredo_archive.errors import CommitStateUnknown, DestinationDenied, DestinationUnavailable
from laredo_archive.storage.s3.requests import ATTEMPTS
from tests.support.archive.s3_way import Way
from tests.support.faults.fault import Fault, answer, drop, late, reset

KEY = "t/epoch=1/a"


@pytest.fixture(autouse=True)
def there(way: Way) -> None:
    way.direct.swap(KEY, b"x", None)


UNCLEAR = [
    drop(),
    drop(after=True),
    reset(after=True),
    late(0.05),
    answer(500, "InternalError"),
    answer(500, "InternalError", after=True),
]


@pytest.mark.parametrize("fault", UNCLEAR, ids=str)
def test_one_without_an_answer_may_yet_come(way: Way, fault: Fault) -> None:
    way.meets(fault, "DeleteObject")
    with pytest.raises(CommitStateUnknown, match="epoch=1/a"):
        way.faulty.delete(KEY)
    way.proxy.settle()
    assert way.sent("DeleteObject") == 1


def test_a_throttled_one_is_sent_again(way: Way) -> None:
    way.meets(answer(503, "SlowDown"), "DeleteObject", times=3)
    way.faulty.delete(KEY)
    assert way.read(KEY) is None
    way.meets(answer(503, "SlowDown"), "DeleteObject", times=None)
    with pytest.raises(CommitStateUnknown):
        way.faulty.delete(KEY)
    assert way.sent("DeleteObject") == 4 + ATTEMPTS


def test_what_isnt_there_is_as_good(way: Way) -> None:
    way.meets(answer(404, "NoSuchKey"), "DeleteObject")
    way.faulty.delete(KEY)


def test_one_that_was_refused_is_still_there(way: Way) -> None:
    way.meets(answer(403, "AccessDenied"), "DeleteObject")
    with pytest.raises(DestinationDenied, match="s3:DeleteObject"):
        way.faulty.delete(KEY)
    with way.proxy.away(), pytest.raises(DestinationUnavailable):
        way.faulty.delete(KEY)
    assert way.read(KEY) == b"x"
