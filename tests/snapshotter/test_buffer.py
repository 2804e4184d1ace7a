"""The buffer's net changes against a plain fold of the same changes."""

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from laredo_model.line import Action
from laredo_snapshotter.diff import buffer as buffer_
from laredo_snapshotter.diff.buffer import ChangeBuffer, DiffSummary, FrozenBuffer
from laredo_snapshotter.errors import StreamInconsistent
from tests.snapshotter.change_stream import EMPTY, Row, State, Stream, assert_leads, state_of, take
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
                frozen = buffer.freeze(position - 1)
                assert_leads(before, frozen, whole)
                before = whole
            take(buffer, rows[at : at + size], position, ends=ends)
            if chance.random() < 0.3:
                buffer.spill()
        if chance.random() < 0.3:
            assert_leads(before, buffer.freeze(position), stream.state)
            before = dict(stream.state)
    assert_leads(before, buffer.freeze(stream.position), stream.state)


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
    frozen = buffer.freeze(7)
    assert frozen.measure(*EMPTY).rows == 10_000
    assert frozen.to_time_us == 70
    frozen.close()
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
    assert buffer.freeze(1).measure(*EMPTY).empty


# The count of keys without a net change against every state that a window went through.


class Window:
    """Changes between two diffs, and every state in between."""

    def __init__(self, before: State) -> None:
        self.before = dict(before)
        self.states = [dict(before)]
        self.truncated = self.spilled = False

    def note(self, rows: list[Row]) -> None:
        """One transaction, change by change: a base client may stop between two."""
        state = dict(self.states[-1])
        for action, key, new, _ in rows:
            if action == Action.TRUNCATE:
                state, self.truncated = {}, True
            elif action == Action.DELETE:
                del state[key]
            else:
                state[key] = new
            self.states.append(dict(state))

    @property
    def cancelled(self) -> set[bytes]:
        after = self.states[-1]
        touched = {key for state in self.states for key in state | self.before}
        return {
            key
            for key in touched
            if self.before.get(key) == after.get(key)
            and any(state.get(key) != after.get(key) for state in self.states)
        }

    def check(self, frozen: FrozenBuffer, outcome: DiffSummary) -> None:
        if outcome.truncate:
            return
        if not (self.truncated or self.spilled):
            assert outcome.cancelled == len(self.cancelled)
        assert outcome.cancelled >= len(self.cancelled)
        if outcome.cancelled == 0:
            for state in self.states:
                assert from_the_middle(state, frozen) == self.states[-1]


def from_the_middle(state: State, frozen: FrozenBuffer) -> State:
    """The diff on a state inside its window: put what is new, remove what goes."""
    found = dict(state)
    for _, key, _, new in frozen.changes():
        if new is None:
            found.pop(key, None)
        else:
            found[key] = new
    return found


@settings(max_examples=examples(400))
@given(seed=st.integers(0, 2**32))
@example(seed=10512)
def test_no_cancelled_key_goes_uncounted(seed: int) -> None:
    stream = Stream(seed)
    chance = stream.random
    buffer, window = ChangeBuffer(), Window(stream.state)
    unwritten = 0
    for _ in range(chance.randrange(1, 30)):
        position, rows = stream.transaction()
        window.note(rows)
        half = chance.randrange(len(rows) + 1) if chance.random() < 0.4 else 0
        if half:
            take(buffer, rows[:half], position, ends=False)
            if chance.random() < 0.3:
                buffer.spill()
                window.spilled = True
        take(buffer, rows[half:], position, ends=True)
        if chance.random() < 0.4:
            frozen = buffer.freeze(position)
            if frozen.empty:  # not even put: what it cancelled is carried by the buffer
                continue
            outcome = frozen.measure(*state_of(window.before))
            if outcome.empty:  # not written: carried by the committer
                unwritten += outcome.cancelled
            else:
                window.check(frozen, outcome._replace(cancelled=outcome.cancelled + unwritten))
            frozen.close()
            if outcome.empty:
                continue
            window, unwritten = Window(stream.state), 0
    buffer.clear()


def changes(*rows: tuple[bytes | None, bytes | None], key: bytes = b"1") -> list[Row]:
    return [
        (Action.DELETE if new is None else Action.INSERT if old is None else Action.UPDATE,
         key, new or b"", old or b"")
        for old, new in rows
    ]  # fmt: skip


def test_a_forced_window_carries_nothing_on() -> None:
    buffer = ChangeBuffer()
    take(buffer, changes((None, b"a"), (b"a", None)), 1, ends=True)
    forced = buffer.freeze(5, forced=True)
    assert forced.measure(*EMPTY).cancelled == 1
    take(buffer, changes((None, b"a"), key=b"2"), 6, ends=True)
    assert buffer.freeze(9).measure(*EMPTY).cancelled == 0


def test_a_truncate_counts_what_was_spilled() -> None:
    buffer = ChangeBuffer()
    for number in range(7):
        take(buffer, changes((None, b"a"), key=b"%d" % number), 5, ends=False)
    buffer.spill()
    take(buffer, [(Action.TRUNCATE, b"", b"", b"")], 5, ends=True)
    take(buffer, changes((None, b"b"), key=b"x"), 6, ends=True)
    frozen = buffer.freeze(9)
    outcome = frozen.measure(*EMPTY)
    assert (outcome.truncate, outcome.cancelled) == (False, 7)
    frozen.close()


def test_many_keys_are_counted_without_being_held() -> None:
    found = buffer_.Cancelled()
    for number in range(buffer_.KEPT * 3):
        found.add(b"%d" % number)
    found.add(b"x" * 10_000)
    assert found.count == buffer_.KEPT * 3 + 1
    assert len(found._keys) <= buffer_.KEPT


def test_the_memory_of_a_merge_doesnt_grow_with_the_transaction(tmp_path: Path) -> None:
    file = buffer_.SpillFile(tmp_path)
    for run in range(1, 501):
        file.write((b"%d-%03d" % (part, run), None, b"%d" % run * 20_000) for part in range(2))
        file.write([(b"again", b"%d" % (run - 1), b"%d" % run)])
    tracemalloc.start()
    found = [(key, old, (new or b"")[:3]) for key, old, new in file.merged([])]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20
    expected = [
        (b"%d-%03d" % (n, run), None, b"%d" % run * 3) for n in range(2) for run in range(1, 501)
    ]
    assert found == [(key, old, new[:3]) for key, old, new in expected] + [(b"again", b"0", b"500")]
    file.close()
