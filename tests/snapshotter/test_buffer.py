"""The buffer's net changes against a plain fold of the same changes."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laredo_model.line import Action
from laredo_snapshotter.diff.buffer import ChangeBuffer
from laredo_snapshotter.errors import StreamInconsistent
from tests.snapshotter.change_stream import EMPTY, Row, Stream, assert_leads, take
from tests.support.drawn import examples


@settings(max_examples=examples(200))
@given(seed=st.integers(0, 2**32))
def test_net_changes_fold_to_the_same_state(seed: int) -> None:
    stream = Stream(seed)
    chance = stream.random
    buffer, before = ChangeBuffer(), dict(stream.state)
    for _ in range(chance.randrange(1, 30)):
        whole = dict(stream.state)
        position, rows = stream.transaction()
        if chance.random() < 0.2:  # the connection goes in mid-transaction, the stream resumes
            take(buffer, rows[: chance.randrange(1, len(rows) + 1)], position, ends=False)
            if chance.random() < 0.5:
                buffer.spill()
            buffer.abandon()
        parts = 1 if chance.random() < 0.6 else min(len(rows), 3)
        size = -(-len(rows) // parts)
        for at in range(0, len(rows), size):
            ends = at + size >= len(rows)
            if not ends and chance.random() < 0.5:  # a cut while a transaction is open
                sealed = buffer.seal(position - 1)
                assert_leads(before, sealed, whole)
                before = whole
            take(buffer, rows[at : at + size], position, ends=ends)
            if chance.random() < 0.3:
                buffer.spill()
        if chance.random() < 0.3:
            assert_leads(before, buffer.seal(position), stream.state)
            before = dict(stream.state)
    assert_leads(before, buffer.seal(stream.position), stream.state)


def test_memory_is_accounted_to_zero() -> None:
    buffer = ChangeBuffer()
    rows: list[Row] = [(Action.INSERT, b"%d" % n, b"x" * 100, b"") for n in range(100)]
    take(buffer, rows, 1, ends=True)
    assert buffer.memory_bytes > 100 * 100
    take(buffer, [(Action.DELETE, key, b"", line) for _, key, line, _ in rows], 2, ends=True)
    assert buffer.memory_bytes == 0
    assert buffer.empty


def test_a_transaction_on_disk_isnt_in_memory(tmp_path: Path) -> None:
    buffer = ChangeBuffer(tmp_path)
    for start in range(0, 10_000, 1000):
        rows: list[Row] = [
            (Action.INSERT, b"%05d" % n, b"%d" % n * 20, b"") for n in range(start, start + 1000)
        ]
        take(buffer, rows, 7, ends=start == 9000)
        buffer.spill()
    assert buffer.memory_bytes < 1000 * 500
    assert buffer.spilled_bytes > 9 * 1000 * 25
    sealed = buffer.seal(7)
    assert sealed.measure(*EMPTY).rows == 10_000
    assert sealed.to_time_us == 70
    sealed.close()
    assert not list(tmp_path.iterdir())


def test_a_change_that_doesnt_fit_the_one_before_is_refused() -> None:
    buffer = ChangeBuffer()
    take(buffer, [(Action.UPDATE, b"42", b"b", b"a")], 1, ends=True)
    with pytest.raises(StreamInconsistent, match="key '42' at 0/2"):
        take(buffer, [(Action.UPDATE, b"42", b"d", b"c")], 2, ends=True)


def test_a_truncate_of_an_empty_table_is_nothing() -> None:
    buffer = ChangeBuffer()
    take(buffer, [(Action.TRUNCATE, b"", b"", b"")], 1, ends=True)
    assert not buffer.empty
    assert buffer.seal(1).measure(*EMPTY).empty
