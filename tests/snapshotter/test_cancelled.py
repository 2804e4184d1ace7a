"""The count of keys without a net change against every state that a window went through."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from laredo_model.line import Action
from laredo_snapshotter.diff import buffer as buffer_
from laredo_snapshotter.diff.buffer import Cancelled, ChangeBuffer, DiffSummary, Sealed
from tests.snapshotter.change_stream import EMPTY, Row, State, Stream, state_of, take
from tests.support.drawn import examples


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

    def check(self, sealed: Sealed, outcome: DiffSummary) -> None:
        if outcome.truncate:
            return
        if not (self.truncated or self.spilled):
            assert outcome.cancelled == len(self.cancelled)
        assert outcome.cancelled >= len(self.cancelled)
        if outcome.cancelled == 0:
            for state in self.states:
                assert from_the_middle(state, sealed) == self.states[-1]


def from_the_middle(state: State, sealed: Sealed) -> State:
    """The diff on a state inside its window: put what is new, remove what goes."""
    found = dict(state)
    for _, key, _, new in sealed.changes():
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
            sealed = buffer.seal(position)
            if sealed.empty:  # not even put: what it cancelled is carried by the buffer
                continue
            outcome = sealed.measure(*state_of(window.before))
            if outcome.empty:  # not written: carried by the committer
                unwritten += outcome.cancelled
            else:
                window.check(sealed, outcome._replace(cancelled=outcome.cancelled + unwritten))
            sealed.close()
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


def cancelled_in(*transactions: list[Row]) -> int:
    buffer = ChangeBuffer()
    for position, rows in enumerate(transactions):
        take(buffer, rows, position, ends=True)
    return buffer.seal(9).measure(5, f"{7:032x}").cancelled


def test_a_key_that_comes_to_nothing_counts_once() -> None:
    back = changes((b"a", b"b"), (b"b", b"a"))
    assert cancelled_in(back, back, back) == 1
    assert cancelled_in(changes((None, b"a")), changes((b"a", None))) == 1
    assert cancelled_in(back, changes((None, b"a"), key=b"2")) == 1


def test_a_key_that_changes_again_does_not_count() -> None:
    assert cancelled_in(changes((b"a", b"b"), (b"b", b"a")), changes((b"a", b"c"))) == 0
    assert cancelled_in(changes((b"a", b"a"))) == 0


def test_what_came_to_nothing_in_an_unwritten_window_counts_in_the_next() -> None:
    buffer = ChangeBuffer()
    take(buffer, changes((None, b"a"), (b"a", None)), 1, ends=True)
    assert buffer.seal(5).empty
    take(buffer, changes((None, b"a"), key=b"2"), 6, ends=True)
    sealed = buffer.seal(9)
    assert sealed.measure(*EMPTY).cancelled == 1
    take(buffer, changes((None, b"a"), key=b"3"), 10, ends=True)
    assert buffer.seal(11).measure(*EMPTY).cancelled == 0


def test_a_forced_window_carries_nothing_on() -> None:
    buffer = ChangeBuffer()
    take(buffer, changes((None, b"a"), (b"a", None)), 1, ends=True)
    forced = buffer.seal(5, forced=True)
    assert forced.measure(*EMPTY).cancelled == 1
    take(buffer, changes((None, b"a"), key=b"2"), 6, ends=True)
    assert buffer.seal(9).measure(*EMPTY).cancelled == 0


def test_a_truncate_counts_what_was_spilled() -> None:
    buffer = ChangeBuffer()
    for number in range(7):
        take(buffer, changes((None, b"a"), key=b"%d" % number), 5, ends=False)
    buffer.spill()
    take(buffer, [(Action.TRUNCATE, b"", b"", b"")], 5, ends=True)
    take(buffer, changes((None, b"b"), key=b"x"), 6, ends=True)
    sealed = buffer.seal(9)
    outcome = sealed.measure(*EMPTY)
    assert (outcome.truncate, outcome.cancelled) == (False, 7)
    sealed.close()


def test_many_keys_are_counted_without_being_held() -> None:
    found = Cancelled()
    for number in range(buffer_.KEPT * 3):
        found.add(b"%d" % number)
    found.add(b"x" * 10_000)
    assert found.count == buffer_.KEPT * 3 + 1
    assert len(found._keys) <= buffer_.KEPT
