"""Virtual time and chance: processes that take turns, and can end at any of them.

Each strand (a process has one, and more while it does things at once) runs in a
thread of its own, but only one at a time, and who is next follows from the seed:
the same seed gives the same history, step by step. A strand that gives its turn
back and is the next one all the same simply goes on: that is most turns, and what
makes a history cheap.
"""

import heapq
import itertools
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

T = TypeVar("T")

START = datetime(2026, 1, 1, tzinfo=UTC)
MOST_STEPS = 200_000


class Crashed(BaseException):
    """The actor's process was killed."""


class Actor:
    """One process; it gives the turn back at every step.

    ``frailty`` multiplies the world's crash probability; 0: it can't be killed.
    """

    def __init__(self, world: "World", name: str, frailty: float = 0.0) -> None:
        self.world = world
        self.name = name
        self.frailty = frailty
        self.doomed = False

    def step(self, seconds: float = 0.0) -> None:
        """Let the others go on for ``seconds``; the process may end here."""
        self.world.pass_turn(self, seconds)

    def at_once(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Results of the tasks, which take turns too. The first failure is raised.

        A process that was killed does nothing in any of them any more.
        """
        return tasks_done(tasks) if len(tasks) < 2 else self.world.run_beside(self, tasks)


def tasks_done(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """One after the other."""
    return [task() for task in tasks]


@dataclass(eq=False)
class _Strand:
    actor: Actor
    body: Callable[[], Any]
    on_end: Callable[["_Strand"], None]
    go: threading.Lock = field(default_factory=threading.Lock)
    result: Any = None
    failure: BaseException | None = None

    def run(self) -> None:
        if not self.actor.doomed:
            try:
                self.result = self.body()
            except BaseException as failure:  # noqa: BLE001  # whoever waits for it raises it
                self.failure = failure
        else:
            self.failure = Crashed()
        self.on_end(self)


class _Threads:
    """Threads that run one strand after the other: beginning one costs more than a turn."""

    def __init__(self) -> None:
        self._idle: list[tuple[threading.Lock, list[_Strand]]] = []

    def give(self, strand: _Strand) -> None:
        """Run ``strand`` once its turn comes."""
        if self._idle:
            wake, work = self._idle.pop()
            work.append(strand)
            wake.release()
            return
        wake, work = threading.Lock(), [strand]
        threading.Thread(target=self._run, args=(wake, work), daemon=True).start()

    def _run(self, wake: threading.Lock, work: list[_Strand]) -> None:
        while True:
            wake.acquire()
            strand = work.pop()
            strand.go.acquire()
            strand.run()
            self._idle.append((wake, work))


_THREADS = _Threads()


class World:
    """The clock, the dice and the actors."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.crash_probability = 0.0
        self.log: list[str] = []
        self.steps = 0
        self._turns: list[tuple[float, int, _Strand]] = []
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._strand: _Strand | None = None
        self._ended = threading.Lock()
        self._ended.acquire()
        self._failure: BaseException | None = None

    @property
    def date(self) -> datetime:
        """The stores' clock."""
        return START + timedelta(seconds=self.now)

    def spawn(
        self,
        name: str,
        body: Callable[[Actor], None],
        frailty: float = 0.0,
        on_killed: Callable[[], None] = lambda: None,
    ) -> None:
        """A new process, whose first turn comes some time."""
        actor = Actor(self, name, frailty)

        def end(strand: _Strand) -> None:
            if isinstance(strand.failure, Crashed):
                on_killed()
            elif strand.failure is not None:
                self._failure = strand.failure
            self._hand_on()

        self._begin(_Strand(actor, lambda: body(actor), end))

    def later(self, seconds: float, effect: Callable[[], None]) -> None:
        """Something that happens by itself, without an actor."""
        heapq.heappush(self._later, (self.now + seconds, next(self._order), effect))

    def note(self, text: str) -> None:
        """A line of the history, shown when the seed fails."""
        self.log.append(f"{self.now:10.2f} {text}")

    def run(self) -> None:
        """Until all actors are done and nothing is to come."""
        self.steps = 0
        self._hand_on()
        self._ended.acquire()
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Kill everyone, so that no thread is left behind by a failing seed."""
        self._later.clear()
        self.crash_probability = 0.0
        while self._turns:
            self._failure, self.steps = None, 0
            for _, _, strand in self._turns:
                strand.actor.doomed = True
            self._hand_on()
            self._ended.acquire()

    # Turns. Everything below is called by the strand whose turn it is.

    def pass_turn(self, actor: Actor, seconds: float) -> None:
        """The running strand, which is ``actor``'s, waits for ``seconds``."""
        if actor.doomed:
            raise Crashed
        strand = self._strand
        assert strand is not None
        assert strand.actor is actor, "an actor acts only in its own turn"
        self._wait(strand, seconds)
        self._hand_on(strand)
        if actor.doomed:
            raise Crashed

    def run_beside(self, actor: Actor, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """The running strand waits until each task has been done by a strand of its own."""
        parent = self._strand
        assert parent is not None
        missing = len(tasks)

        def end_task(_: _Strand) -> None:
            nonlocal missing
            missing -= 1
            if missing == 0:
                self._wait(parent, 0.0)
            self._hand_on()

        strands = [_Strand(actor, task, end_task) for task in tasks]
        for strand in strands:
            self._begin(strand)
        self._hand_on(parent)
        if actor.doomed:
            raise Crashed
        for strand in strands:
            if isinstance(strand.failure, AssertionError):
                raise strand.failure
        for strand in strands:
            if strand.failure is not None:
                raise strand.failure
        return [strand.result for strand in strands]

    def _begin(self, strand: _Strand) -> None:
        strand.go.acquire()
        self._wait(strand, 0.0)
        _THREADS.give(strand)

    def _wait(self, strand: _Strand, seconds: float) -> None:
        heapq.heappush(self._turns, (self.now + seconds, next(self._order), strand))

    def _hand_on(self, own: _Strand | None = None) -> None:
        """Let the next one go on; come back when it is ``own``'s turn again."""
        following = self._next()
        if following is own and own is not None:
            return
        if following is None:
            self._ended.release()
        else:
            self._strand = following
            following.go.release()
        if own is not None:
            own.go.acquire()

    def _next(self) -> _Strand | None:
        self.steps += 1
        try:
            assert self.steps < MOST_STEPS, f"not at an end after {MOST_STEPS} steps"
            self._let_happen()
        except BaseException as failure:  # noqa: BLE001  # run() raises it
            self._failure = failure
        if self._failure is not None or not self._turns:
            return None
        at, _, strand = heapq.heappop(self._turns)
        self.now = max(self.now, at)
        actor = strand.actor
        if actor.frailty and self.chance.random() < self.crash_probability * actor.frailty:
            self._kill(actor)
        return strand

    def _kill(self, actor: Actor) -> None:
        if not actor.doomed:
            actor.doomed = True
            self.note(f"{actor.name} is killed")

    def _let_happen(self) -> None:
        """Apply the effects that are due before the next turn."""
        while self._later and (not self._turns or self._later[0][0] <= self._turns[0][0]):
            at, _, effect = heapq.heappop(self._later)
            self.now = max(self.now, at)
            effect()
