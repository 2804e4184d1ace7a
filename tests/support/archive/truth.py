"""The database that is archived: what it held at every position, of every history."""

from bisect import bisect_right
from dataclasses import dataclass, field

from laredo_model.checksum import StateChecksum
from laredo_model.column import Column
from laredo_model.line import Action, Change
from laredo_model.position import History, Position
from tests.support.archive.world import World

COLUMNS = (
    Column("id", "int8", -1, nullable=False, ordinal=1, key_ordinal=1),
    Column("v", "text", -1, nullable=True, ordinal=2, key_ordinal=None),
)

STEP = 16
"""Positions are few, so that histories often have the same ones, with other rows."""

State = dict[bytes, bytes]


def checksum_of(state: State) -> StateChecksum:
    checksum = StateChecksum()
    checksum.add(list(state.values()))
    return checksum


@dataclass
class WriterSession:
    """One history: the states after each commit, by position."""

    history: History
    positions: list[Position] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    truncations: list[Position] = field(default_factory=list)

    def state_at(self, position: Position) -> State:
        index = bisect_right(self.positions, position)
        return self.states[index - 1]

    def truncated_in(self, start: Position, end: Position) -> bool:
        return any(start < position <= end for position in self.truncations)


class Database:
    """A table that changes, fails over now and then, and whose journal forgets."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._values = 0
        self.lives: dict[History, WriterSession] = {}
        self.floor = Position(0)
        self._begin(History(1, 1, 5), Position(16), {})

    def _begin(self, history: History, position: Position, state: State) -> None:
        self.life = self.lives[history] = WriterSession(history, [position], [state])
        self.floor = position

    @property
    def position(self) -> Position:
        return self.life.positions[-1]

    @property
    def history(self) -> History:
        return self.life.history

    def commit(self) -> None:
        """One transaction."""
        chance, state = self._world.chance, dict(self.life.states[-1])
        position = Position(self.position + STEP * chance.randint(1, 4))
        if chance.random() < 0.03:
            state = {}
            self.life.truncations.append(position)
        for _ in range(chance.randint(0, 4)):
            key = b"%d" % chance.randint(1, 12)
            if key in state and chance.random() < 0.4:
                del state[key]
            else:
                self._values += 1
                state[key] = b'{"id":%s,"v":"%d"}' % (key, self._values)
        self.life.positions.append(position)
        self.life.states.append(state)

    def forget(self) -> None:
        """The journal is pruned up to somewhere."""
        self.floor = self._world.chance.choice(self.life.positions[-6:])

    def fail_over(self) -> None:
        """Another timeline, which begins somewhere before the end of this one, or a restore."""
        before = self.life
        start = self._world.chance.choice(before.positions[-4:])
        history = before.history._replace(timeline=before.history.timeline + 1)
        self._begin(history, Position(start + STEP), before.state_at(start))


def net_changes(
    life: WriterSession, start: Position, end: Position, *, idle: bool = False
) -> tuple[list[Change], bool]:
    """Changes of a diff over (start, end], and True if it truncates.

    ``idle``: as another version of the program might write it, with an update of a row
    to what it was: other bytes for the same window.
    """
    truncate = life.truncated_in(start, end)
    old = {} if truncate else life.state_at(start)
    new = life.state_at(end)
    changes = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if before is None and after is not None:
            changes.append(Change(Action.INSERT, key, None, after))
        elif after is None:
            changes.append(Change(Action.DELETE, key, before, None))
        elif before != after or idle:
            changes.append(Change(Action.UPDATE, key, before, after))
    return changes, truncate and bool(life.state_at(start))
