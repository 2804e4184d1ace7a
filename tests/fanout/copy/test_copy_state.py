"""The state machine of a copy, driven by any events in any order: what holds whatever happens.

The test plays the store, the stream and the connections. It knows nothing of the machine's states
but whether one has ended: it judges what the machine lets be read, sent and published.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from laredo_fanout.copy import table_copy
from laredo_fanout.copy.table_copy import (
    MOST_REFUSALS,
    CopyChunk,
    CopyMachine,
    CopyState,
    Event,
    IllegalTransition,
)
from tests.support.drawn import examples

RANGES = 4
KEYS = [b"%d" % number for number in range(1200)]


class AnyEvents(RuleBasedStateMachine):
    """Every rule may come in every state. A machine that refuses an event must be as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.repeatable = True
        self._begin(done=frozenset())

    def _begin(self, done: frozenset[int]) -> None:
        self.machine = CopyMachine("public.t", done, repeatable=self.repeatable)
        self.done_before = done
        self.planned = False
        self.generation = 0
        self.reading: list[CopyChunk] = []
        self.whole: set[int] = set(done)
        """Ranges of which every row was written at one generation."""
        self.partial: set[bytes] = set()
        """Keys that the machine was told to read again, and that weren't read yet."""
        self.refused_in_a_row = 0
        self.repeats = 0
        self.sent: list[str] = []

    def _seen(self) -> object:
        machine = self.machine
        return (machine.state, machine.done, machine.active, machine.has_work, machine.barrier)

    def _tries(self, event: str, *about: object) -> bool:
        """Send an event; True if the machine accepted it."""
        before = self._seen()
        try:
            getattr(self.machine, event)(*about)
        except IllegalTransition as refused:
            assert self._seen() == before
            assert "public.t" in str(refused)
            return False
        return True

    # ------------------------------------------------------------ what happens

    @initialize(repeatable=st.booleans())
    def begins(self, repeatable: bool) -> None:
        self.repeatable = repeatable
        self._begin(frozenset())

    @rule()
    def restarts(self) -> None:
        """The session ends; the next one knows the finished ranges."""
        self._begin(self.machine.done if self.repeatable else frozenset())

    @rule(event=st.sampled_from(["plan", "plan", "wait_for"]))
    def is_prepared(self, event: str) -> None:
        if self._tries(event, RANGES if event == "plan" else (1, 2)):
            assert not self.planned
            self.planned = event == "plan"

    @rule()
    def reader_is_free(self) -> None:
        if not self.machine.has_work:
            with pytest.raises(IllegalTransition):
                self.machine.take(self.generation)
            return
        assert not self.machine.ended
        reading = self.machine.take(self.generation)
        assert reading.generation == self.generation
        if reading.number is None:
            assert set(reading.keys) <= self.partial
            assert not any(set(reading.keys) & set(each.keys) for each in self.reading)
        else:
            assert reading.number not in self.whole, "read again although it was whole"
            assert reading.number not in {each.number for each in self.reading}
        self.reading.append(reading)

    @rule()
    def all_is_read(self) -> None:
        """Every chunk that is left, one after the other."""
        while self.machine.has_work:
            self.reader_is_free()
        while self.reading and not self.machine.ended:
            self._ends(self.reading[0])
            while self.machine.has_work:
                self.reader_is_free()

    @rule()
    def truncated(self) -> None:
        self.generation += 1

    @rule(data=st.data())
    @precondition(lambda self: self.reading)
    def chunk_ends(self, data: st.DataObject) -> None:
        self._ends(data.draw(st.sampled_from(self.reading)))

    def _ends(self, reading: CopyChunk) -> None:
        if not self._tries("finish", reading, self.generation):
            assert self.machine.ended
            return
        self.reading.remove(reading)
        if reading.generation != self.generation:
            self.repeats += 1
            assert reading.number not in self.machine.done
            return
        self.refused_in_a_row = 0
        if reading.number is None:
            self.partial -= set(reading.keys)
        else:
            self.whole.add(reading.number)

    @rule(data=st.data(), how=st.sampled_from(["put_back", "repeat", "refuse"]))
    @precondition(lambda self: self.reading)
    def chunk_fails(self, data: st.DataObject, how: str) -> None:
        reading = data.draw(st.sampled_from(self.reading))
        if not self._tries(how, reading):
            assert self.machine.ended
            return
        self.reading.remove(reading)
        self.repeats += how != "put_back"
        self.refused_in_a_row += how == "refuse"

    @rule(event=st.sampled_from(["finish", "put_back", "repeat", "refuse"]))
    def stranger_ends(self, event: str) -> None:
        """A chunk that nobody was given."""
        stranger = CopyChunk(RANGES + 7)
        about = (stranger, self.generation) if event == "finish" else (stranger,)
        assert not self._tries(event, *about)

    @rule(count=st.sampled_from([1, 500, 501, 1200]))
    def rows_are_partial(self, count: int) -> None:
        if self._tries("reread", KEYS[:count]):
            self._is_all_read()
            self.partial = set(KEYS[:count])

    @rule(event=st.sampled_from(["send_barrier", "publish"]))
    def barrier_moves(self, event: str) -> None:
        payload = f"barrier {len(self.sent)}"
        about = (payload,) if event == "send_barrier" else ()
        if not self._tries(event, *about):
            return
        self._is_all_read()
        if event == "send_barrier":
            self.sent.append(payload)
        assert self.machine.awaits(self.sent[-1]) is (event == "send_barrier")

    @invariant()
    def old_barriers_are_ignored(self) -> None:
        assert not any(self.machine.awaits(payload) for payload in self.sent[:-1])

    @rule(event=st.sampled_from(["give_up", "discard"]), why=st.integers(0, 9))
    def ends(self, event: str, why: int) -> None:
        published = self.machine.state is CopyState.PUBLISHED
        if why == 0 and self._tries(event):
            assert self.machine.ended
            assert not published

    # ------------------------------------------------------------ what holds

    def _is_all_read(self) -> None:
        assert self.planned
        assert self.whole == set(range(RANGES))
        assert not self.reading, "a chunk is being read"
        assert not self.partial, "rows lack values"

    @invariant()
    def finished_ranges_are_whole(self) -> None:
        assert self.machine.done == self.whole
        assert self.done_before <= self.machine.done

    @invariant()
    def ended_copies_hand_out_nothing(self) -> None:
        assert not (self.machine.ended and self.machine.has_work)
        assert self.machine.ended or self.machine.active == len(self.reading)

    @invariant()
    def gives_up_in_time(self) -> None:
        if self.refused_in_a_row >= MOST_REFUSALS or (self.repeats and not self.repeatable):
            assert self.machine.ended

    @invariant()
    def status_is_said(self) -> None:
        assert self.machine.state.phase
        assert not self.machine.waiting_for or not self.planned

    def teardown(self) -> None:
        """From wherever it is, a copy that hasn't ended can be led to its end."""
        machine = self.machine
        if machine.ended:
            with pytest.raises(IllegalTransition):
                machine.take(self.generation)
            return
        if not self.planned:
            machine.plan(RANGES)
            self.planned = True
        for reading in list(self.reading):
            machine.put_back(reading)
        self.reading.clear()
        while machine.has_work:
            self.reader_is_free()
            reading = self.reading.pop()
            machine.finish(reading, self.generation)
            self.partial -= set(reading.keys)
            if reading.number is not None:
                self.whole.add(reading.number)
        self._is_all_read()
        if not machine.awaits(str(machine.barrier)):
            machine.send_barrier("last")
        machine.publish()
        assert machine.ended


TestAnyEvents = AnyEvents.TestCase
TestAnyEvents.settings = settings(max_examples=examples(400), stateful_step_count=60)


def test_chunks_that_are_refused_again_and_again_end_the_copy() -> None:
    machine = CopyMachine("public.t")
    machine.plan(2)
    for _ in range(MOST_REFUSALS - 1):
        machine.refuse(machine.take(0))
    machine.finish(machine.take(0), 0)
    for _ in range(MOST_REFUSALS):
        assert not machine.ended
        machine.refuse(machine.take(0))
    assert machine.state is CopyState.FAILED


@pytest.mark.parametrize("event", ["repeat", "refuse"])
def test_table_without_a_key_is_read_once(event: str) -> None:
    machine = CopyMachine("public.t", repeatable=False)
    machine.plan(1)
    machine.put_back(machine.take(0))
    assert machine.has_work, "nothing of it was written"
    getattr(machine, event)(machine.take(0))
    assert machine.state is CopyState.FAILED


def test_every_state_and_every_event_is_used() -> None:
    """A state that nothing leads to, or an event that none knows, would be dead."""
    table = table_copy._TRANSITIONS
    reached = {CopyState.WAITING} | {to for row in table.values() for to in row.values()}
    assert reached == set(CopyState) == set(table)
    assert {event for row in table.values() for event in row} == set(Event)
    assert {state for state, row in table.items() if not row} < {s for s in CopyState if s.ended}
