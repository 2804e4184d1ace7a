"""A table that anybody knows at any position without being told: it is drawn from the position."""

from dataclasses import dataclass
from random import Random

from laredo_model.line import Action, Change
from tests.support.archive.truth import State

STEP = 10
"""Transactions end at multiples of it."""

TRUNCATED_EVERY = 7 * STEP
KEYS = 24


@dataclass(frozen=True)
class RandomTable:
    """One for each seed."""

    seed: int

    def at(self, position: int) -> State:
        """Its rows by key: those of the last transaction that ended at or before ``position``."""
        end = position - position % STEP
        chance = Random(f"{self.seed} {end}")
        state: State = {}
        for key in range(KEYS):
            if chance.random() < 0.7:
                value = chance.randbytes(chance.randint(1, 40)).hex()
                state[b"%d" % key] = b'{"id":%d,"v":"%s"}' % (key, value.encode())
        return state

    def changes(self, start: int, end: int) -> tuple[list[Change], bool]:
        """The net changes over (start, end], by key, and whether it was truncated in between."""
        truncated = end // TRUNCATED_EVERY > start // TRUNCATED_EVERY
        old, new = {} if truncated else self.at(start), self.at(end)
        changes = []
        for key in sorted(old.keys() | new.keys()):
            before, after = old.get(key), new.get(key)
            if before == after:
                continue
            kind = Action.DELETE if after is None else Action.UPDATE if before else Action.INSERT
            changes.append(Change(kind, key, before, after))
        return changes, truncated
