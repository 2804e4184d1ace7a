"""Partitions that come, bring rows and go, in one transaction or in several, drawn from a seed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.end_to_end.changing_database import ChangingDatabase
    from tests.end_to_end.changing_session import Session
    from tests.end_to_end.changing_table import ChangingTable

_FIRST_ID = 100
"""Beyond those of the partitions that stay."""
_IDS = 40


class Partitions:
    """The table's other partitions: each of a range of its own, or the default one."""

    def __init__(self, database: ChangingDatabase) -> None:
        self._database = database
        self._number = 0

    @property
    def _random(self) -> random.Random:
        return self._database.random

    def come_and_go(self, session: Session, table: ChangingTable) -> str:
        """One of them, within the session's transaction or in some; what was done."""
        self._number += 1
        name = f"{table.name}_x{self._number}"
        low = _FIRST_ID + _IDS * self._number
        kind = self._random.choice(["plain", "plain", "tree", "default", "filled"])
        leaves = self._make(kind, session, table, name, low)
        said = [f"{kind} {name}"]
        parted = self._random.random()
        for _ in range(self._random.choice([1, 2])):
            said += self._part(session, table, parted)
            for _ in range(self._random.choice([1, 5])):
                self._insert(session, table, low)
        said += self._part(session, table, parted)
        for _ in range(self._random.choice([1, 1, 2])):
            if self._random.random() < 0.3:
                session.execute(f"TRUNCATE {(leaf := self._random.choice(leaves))}")
                said += [f"truncate {leaf}", *self._part(session, table, parted)]
        said.append(self._end(kind, session, table, name, low))
        return ", ".join(said)

    def _make(
        self, kind: str, session: Session, table: ChangingTable, name: str, low: int
    ) -> list[str]:
        """Make it; the partitions that hold its rows."""
        bounds = f"FOR VALUES FROM ({low}) TO ({low + _IDS})"
        match kind:
            case "plain":
                session.execute(f"CREATE TABLE {name} PARTITION OF {table.name} {bounds}")
            case "default":
                session.execute(f"CREATE TABLE {name} PARTITION OF {table.name} DEFAULT")
            case "filled":
                session.execute(f"CREATE TABLE {name} (LIKE {table.name} INCLUDING ALL)")
                session.execute(
                    f"INSERT INTO {name} (id, name) SELECT {low} + n, 'along'"
                    " FROM generate_series(0, 3) n"
                )
                session.execute(f"ALTER TABLE {table.name} ATTACH PARTITION {name} {bounds}")
            case "tree":
                session.execute(
                    f"CREATE TABLE {name} PARTITION OF {table.name} {bounds}"
                    " PARTITION BY RANGE (id)"
                )
                session.execute(
                    f"CREATE TABLE {name}_a PARTITION OF {name}"
                    f" FOR VALUES FROM ({low}) TO ({low + _IDS // 2})"
                )
                session.execute(f"CREATE TABLE {name}_d PARTITION OF {name} DEFAULT")
                return [f"{name}_a", f"{name}_d"]
        return [name]

    def _insert(self, session: Session, table: ChangingTable, low: int) -> None:
        key = f"{low + self._random.randrange(_IDS)}, '{self._random.choice('ab')}'"
        session.execute(
            f"INSERT INTO {table.name} (id, name) VALUES ({key}) ON CONFLICT DO NOTHING"
        )

    def _part(self, session: Session, table: ChangingTable, parted: float) -> list[str]:
        """Perhaps the end of the transaction, and another one in which something else is done."""
        if self._random.random() < parted:
            session.touched[table.name] = table
            self._database.commit(session, blind=True)
            session.execute("BEGIN")
            session.is_open = True
            if self._random.random() < 0.5:
                self._database.change(session, table)
            return ["commit"]
        return []

    def _end(self, kind: str, session: Session, table: ChangingTable, name: str, low: int) -> str:
        dice = self._random.random()
        if dice < 0.4:
            session.execute(f"DROP TABLE {name}")
            return "drop"
        if dice < 0.7 or kind == "default":
            session.execute(f"ALTER TABLE {table.name} DETACH PARTITION {name}")
            return "detach"
        if dice < 0.8:
            session.execute(f"ALTER TABLE {table.name} DETACH PARTITION {name}")
            session.execute(f"DELETE FROM {name} WHERE id % 2 = 0")
            session.execute(
                f"ALTER TABLE {table.name} ATTACH PARTITION {name}"
                f" FOR VALUES FROM ({low}) TO ({low + _IDS})"
            )
            return "exchange"
        return "stay"
