"""Journal records cut in two: together they are the whole, and each is a record of its own."""

import pytest

from laredo_fanout.store.journal import Record, cut, cut_after
from laredo_fanout.wire.replication_pb2 import ChangeBatch
from laredo_model.line import Action


def _record(*, with_old: bool, continues: bool = False, is_open: bool = False) -> Record:
    """Entries 11 to 16, of three transactions."""
    body = ChangeBatch(
        first_sequence=11,
        actions=bytes([Action.UPDATE] * 6),
        counts=[2, 3, 1],
        positions=[100, 200, 300],
        times_us=[1, 2, 3],
        open=is_open,
        keys=[b"k%d" % n for n in range(6)],
        lines=[b"l%d" % n for n in range(6)],
    )
    olds = ChangeBatch(old_lines=[b"o%d" % n for n in range(6)])
    return Record(
        11,
        16,
        100,
        300,
        3,
        is_open,
        continues,
        body.SerializeToString(),
        olds.SerializeToString() if with_old else b"",
    )


@pytest.mark.parametrize("with_old", [False, True])
@pytest.mark.parametrize(("last", "positions"), [(12, [100]), (15, [100, 200])])
def test_cut_after_a_transaction(last: int, positions: list[int], with_old: bool) -> None:
    whole = _record(with_old=with_old, continues=True, is_open=True)
    before, rest = cut_after(whole, last), cut(whole, last)
    assert (before.first_sequence, before.last_sequence) == (11, last)
    assert (before.first_position, before.last_position) == (100, positions[-1])
    assert before.last_time_us == len(positions)
    # Its last transaction is whole, although the record's isn't; its first one began before.
    assert (before.open, before.continues) == (False, True)
    assert (rest.first_sequence, rest.last_sequence) == (last + 1, 16)
    assert (rest.open, rest.continues) == (True, False)
    one, other, both = before.decode(), rest.decode(), whole.decode()
    assert list(one.positions) == positions
    assert not one.open
    assert other.open
    for name in ("actions", "counts", "positions", "times_us", "keys", "lines", "old_lines"):
        assert list(getattr(one, name)) + list(getattr(other, name)) == list(getattr(both, name))


def test_what_ends_before_is_not_cut() -> None:
    whole = _record(with_old=True)
    assert cut_after(whole, 16) is whole
    assert cut_after(whole, 99) is whole
