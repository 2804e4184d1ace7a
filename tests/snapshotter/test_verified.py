"""The position up to which a table is verified."""

from laredo_model.position import Position
from laredo_snapshotter.diff.cuts import VerifiedPosition


def test_where_the_server_does_not_tell_everything_is_verified() -> None:
    verified = VerifiedPosition()
    assert verified.covers(10**9)
    assert verified.limit(Position(7)) == 7


def test_an_artifact_may_end_at_it_and_not_behind_it() -> None:
    verified = VerifiedPosition()
    verified.set(100)
    assert verified.covers(100)
    assert not verified.covers(101)
    assert (verified.limit(Position(99)), verified.limit(Position(101))) == (99, 100)


def test_nothing_is_verified_when_a_snapshot_begins() -> None:
    verified = VerifiedPosition()
    verified.set(0)
    assert not verified.covers(1)


def test_who_waits_is_notified_of_changes_only() -> None:
    verified, seen = VerifiedPosition(), list[int | None]()
    verified.notify(lambda: seen.append(verified.position))
    for position in (5, 5, 6, None, None):
        verified.set(position)
    assert seen == [5, 6, None]
