"""Sessions whose transactions overlap and straddle any boundary, with DDL in between."""

import random

from tests.support.postgres import Database

TABLES = ("one", "two", "three")


class Overlapping:
    """Random steps of some sessions: long and short transactions, rolled back and nested ones."""

    def __init__(self, database: Database, seed: int, sessions: int = 5) -> None:
        self._random = random.Random(seed)
        self._sessions = [database.connect() for _ in range(sessions)]
        self._open: set[int] = set()
        self._wrote: dict[int, set[str]] = {}
        self._columns = dict.fromkeys(TABLES, 0)
        self._alone = database.connect()
        for table in TABLES:
            self._alone.execute(f"CREATE TABLE {table} (id serial PRIMARY KEY, a text)".encode())

    def run(self, steps: int) -> None:
        """Take so many steps, then end what is open."""
        for _ in range(steps):
            self._step(self._random.randrange(len(self._sessions)))
        for number in sorted(self._open):
            self._end(number)

    def close(self) -> None:
        for session in (*self._sessions, self._alone):
            session.close()

    def _step(self, number: int) -> None:
        dice = self._random.random()
        if number not in self._open:
            self._sessions[number].execute("BEGIN")
            self._open.add(number)
            self._wrote[number] = set()
        # The first one is a straddler: it goes on for long.
        elif dice < (0.02 if number == 0 else 0.2):
            self._end(number)
        elif dice < 0.25:
            self._alter()
        elif dice < 0.35:
            self._nested(number)
        else:
            self._change(number)

    def _end(self, number: int) -> None:
        how = "ROLLBACK" if self._random.random() < 0.2 else "COMMIT"
        self._sessions[number].execute(how.encode())
        self._open.discard(number)
        self._wrote[number] = set()

    def _table(self, number: int) -> str:
        table = self._random.choice(TABLES)
        self._wrote[number].add(table)
        return table

    def _change(self, number: int) -> None:
        execute, dice = self._sessions[number].execute, self._random.random()
        if dice < 0.6:
            rows = self._random.choice([1, 2, 40])
            made = f"SELECT repeat('x', 50) FROM generate_series(1, {rows})"
            execute(f"INSERT INTO {self._table(number)} (a) {made}".encode())
        elif dice < 0.75:
            table = self._table(number)
            some = f"SELECT id FROM {table} LIMIT 3 FOR UPDATE SKIP LOCKED"
            execute(f"UPDATE {table} SET a = a || 'y' WHERE id IN ({some})".encode())
        elif dice < 0.85:
            table = self._table(number)
            some = f"SELECT id FROM {table} LIMIT 2 FOR UPDATE SKIP LOCKED"
            execute(f"DELETE FROM {table} WHERE id IN ({some})".encode())
        else:
            transactional = self._random.choice(["true", "false"])
            execute(f"SELECT pg_logical_emit_message({transactional}, 'laredo', 'x')".encode())

    def _nested(self, number: int) -> None:
        execute = self._sessions[number].execute
        execute("SAVEPOINT s")
        self._change(number)
        execute("ROLLBACK TO s" if self._random.random() < 0.5 else "RELEASE s")

    def _alter(self) -> None:
        """Of a table that no open transaction has written to."""
        busy = set().union(*(self._wrote[number] for number in self._open))
        free = [table for table in TABLES if table not in busy]
        if not free:
            return
        table = self._random.choice(free)
        if self._random.random() < 0.5:
            self._alone.execute(f"TRUNCATE {table}".encode())
            return
        self._columns[table] += 1
        self._alone.execute(f"ALTER TABLE {table} ADD c{self._columns[table]} int".encode())
