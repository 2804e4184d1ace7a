"""Virtual time and chance: actors that take turns, and can end at any of them.

Each actor runs in a thread of its own, but only one at a time, and who is next
is drawn from the seed: the same seed gives the same history, step by step.
"""

import heapq
import itertools
import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)
MOST_STEPS = 200_000


class Crashed(BaseException):
    """The actor's process was killed."""


class Actor:
    """One process; it gives the turn back at every step."""

    def __init__(self, world: "World", name: str, body: Callable[["Actor"], None]) -> None:
        self.world = world
        self.name = name
        self.wake_at = world.now
        self.doomed = False
        self.done = False
        self.failure: BaseException | None = None
        self._body = body
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def step(self, seconds: float = 0.0) -> None:
        """Let the others go on for ``seconds``; the process may end here."""
        if not self.doomed:
            self.wake_at = self.world.now + seconds
            self._back.release()
            self._go.acquire()
        if self.doomed:
            raise Crashed

    def take_turn(self) -> None:
        """Called by the world: run until the next step."""
        self._go.release()
        self._back.acquire()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self.doomed:
                self._body(self)
        except Crashed:
            pass
        except BaseException as failure:  # noqa: BLE001  # the world raises it
            self.failure = failure
        finally:
            self.done = True
            self._back.release()


class World:
    """The clock, the dice and the actors."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.crash_probability = 0.0
        self.log: list[str] = []
        self._actors: list[Actor] = []
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    @property
    def date(self) -> datetime:
        """The stores' clock."""
        return START + timedelta(seconds=self.now)

    def spawn(self, name: str, body: Callable[[Actor], None]) -> Actor:
        """A new process, whose first turn comes some time."""
        actor = Actor(self, name, body)
        self._actors.append(actor)
        return actor

    def later(self, seconds: float, effect: Callable[[], None]) -> None:
        """Something that happens by itself, without an actor."""
        heapq.heappush(self._later, (self.now + seconds, next(self._order), effect))

    def note(self, text: str) -> None:
        """A line of the history, shown when the seed fails."""
        self.log.append(f"{self.now:10.2f} {text}")

    def run(self) -> None:
        """Until all actors are done and nothing is to come."""
        for _ in range(MOST_STEPS):
            self._actors = [actor for actor in self._actors if not actor.done]
            times = [actor.wake_at for actor in self._actors]
            times += [self._later[0][0]] if self._later else []
            if not times:
                return
            self.now = max(self.now, min(times))
            while self._later and self._later[0][0] <= self.now:
                heapq.heappop(self._later)[2]()
            self._one_turn()
        raise AssertionError(f"not at an end after {MOST_STEPS} steps")

    def _one_turn(self) -> None:
        ready = [actor for actor in self._actors if actor.wake_at <= self.now]
        if not ready:
            return
        actor = self.chance.choice(ready)
        if self.chance.random() < self.crash_probability and actor.name.startswith("mortal"):
            self.note(f"{actor.name} is killed")
            actor.doomed = True
        actor.take_turn()
        if actor.failure is not None:
            raise actor.failure

    def end(self) -> None:
        """Kill everyone, so that no thread is left behind by a failing seed."""
        for actor in self._actors:
            while not actor.done:
                actor.doomed = True
                actor.take_turn()
