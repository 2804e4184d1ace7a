"""Sessions that write to changing tables, driven by one hand, step by step, from a seed.

Each table belongs to one session, which is its only writer, so that what it notes
with the oracle before each commit is what the table holds after it.
"""

import random
from collections import Counter
from collections.abc import Callable
from contextlib import closing

from tests.end_to_end.changing_forms import Forms
from tests.end_to_end.changing_session import Session
from tests.end_to_end.changing_table import ChangingTable, Kind, quoted
from tests.support.oracle import Oracle

_MOST_LOG_ROWS = 300


class ChangingDatabase:
    """All sessions. ``publications``: those of the tables with keys, and of those without."""

    def __init__(self, dsn: str, seed: int, oracle: Oracle, publications: tuple[str, str]) -> None:
        self.random = random.Random(f"rows {seed}")
        self.tables = [ChangingTable(f"t_{kind.name.lower()}", kind) for kind in Kind]
        self.done: list[str] = []
        """Statements that changed tables' columns, for the report of a failure."""
        self.counts: Counter[str] = Counter()
        """Transactions by what was special about them."""
        self._seed = seed
        self._oracle = oracle
        self._forms = Forms(self, publications)
        owner = Session(dsn, 0, [])
        with closing(owner.connection):
            owner.execute("CREATE SCHEMA form")
            # The server finds it there, with what an owner had in mind.
            owner.execute(
                f"CREATE PUBLICATION {publications[0]} WITH (publish_via_partition_root = true)"
            )
            for table in self.tables:
                for statement in [*table.created(self.random), table.new_form()]:
                    owner.execute(statement)
                self._forms.publish(owner, table)
                oracle.start(table.name, table.form, table.shown)
        self._sessions = [Session(dsn, n, self.tables[n::3]) for n in range(3)]

    def begin_part(self, number: int) -> None:
        """Seed the random choices from now on by the seed and this number alone."""
        self.random.seed(f"rows {self._seed} {number}")

    def reconnect(self, dsn: str | None = None) -> None:
        """The database was restarted, or is elsewhere now."""
        for session in self._sessions:
            session.reconnect(dsn)

    def close(self) -> None:
        """End all sessions; what they have not committed is rolled back."""
        for session in self._sessions:
            session.connection.close()

    def finish(self) -> None:
        """Commit what is open."""
        for session in self._sessions:
            self._end_open(session)

    def much(self) -> None:
        """A transaction that is larger than others, of each session that can."""
        for session in self._sessions:
            if not session.is_prepared:
                if not session.is_open:
                    session.execute("BEGIN")
                    session.is_open = True
                self._much(session)
                self.commit(session)

    def step(self) -> None:
        """Something of one of the sessions."""
        session = self.random.choice(self._sessions)
        dice = self.random.random()
        if session.is_prepared:
            if dice < 0.3:
                self._end_prepared(session, self.random.choice(["COMMIT", "COMMIT", "ROLLBACK"]))
        elif not session.is_open:
            session.execute("BEGIN")
            session.is_open = True
            self.change(session)
        elif dice < 0.6:
            self.change(session)
        elif dice < 0.75:
            self._savepoint(session)
        elif dice < 0.78:
            self._much(session)
        elif dice < 0.82:
            self._prepare(session)
        elif dice < 0.95:
            self.commit(session)
        else:
            self._count("rolled back", session)
            session.execute("ROLLBACK")
            session.forget()

    def change_form(self) -> None:
        """Another form of one of the tables, noted as a transaction of its own."""
        session = self.random.choice(self._sessions)
        self._change_form(session, self.random.choice(session.tables), self._forms.change)

    def move_partitions(self) -> None:
        """Partitions come and go, with rows: in more ways than other tables change."""
        session, table = next(
            (session, table)
            for session in self._sessions
            for table in session.tables
            if table.kind is Kind.PARTS
        )
        self._change_form(session, table, self._forms.move_partitions)

    def _change_form(
        self,
        session: Session,
        table: ChangingTable,
        change: Callable[[Session, ChangingTable], str],
    ) -> None:
        self._end_open(session)
        session.execute("BEGIN")
        session.is_open = True
        if self.random.random() < 0.5:
            self.change(session, table)
        self.done.append(f"{table.name}: {change(session, table)}")
        session.touched[table.name] = table
        session.execute(table.new_form())
        if session.is_open:
            if self.random.random() < 0.5:
                self.change(session, table)
            self.commit(session, blind=True)

    def _end_open(self, session: Session) -> None:
        if session.is_prepared:
            self._end_prepared(session, "COMMIT")
        elif session.is_open:
            self.commit(session)

    # ------------------------------------------------------------ how transactions go

    def commit(self, session: Session, *, blind: bool = False) -> None:
        """Note what the tables hold, and commit; ``blind``: nobody can know it from the stream."""
        self._note(session, blind=blind)
        self._count("committed", session)
        session.execute("COMMIT")
        session.forget()

    def _count(self, how: str, session: Session) -> None:
        self.counts[f"giant {how}" if session.is_giant else how] += 1
        self.counts[f"nested {how}"] += bool(session.savepoints)

    def _note(self, session: Session, *, blind: bool = False) -> None:
        for table in session.touched.values():
            self._oracle.note(
                session.connection, table.name, table.form, shown=table.shown, blind=blind
            )

    def _prepare(self, session: Session) -> None:
        self._note(session)
        session.execute(f"PREPARE TRANSACTION '{session.name}'")
        session.is_open, session.is_prepared = False, True
        self._count("prepared", session)

    def _end_prepared(self, session: Session, outcome: str) -> None:
        session.execute(f"{outcome} PREPARED '{session.name}'")
        self._count(f"prepared, then {outcome}", session)
        session.forget()

    def _savepoint(self, session: Session) -> None:
        dice = self.random.random()
        if dice < 0.5 or not session.savepoints:
            session.savepoints += 1
            session.execute(f"SAVEPOINT s{session.savepoints}")
            return
        number = self.random.randint(1, session.savepoints)
        if dice < 0.85:
            session.execute(f"ROLLBACK TO s{number}")
            session.savepoints = number
        else:
            session.execute(f"RELEASE s{number}")
            session.savepoints = number - 1

    # ------------------------------------------------------------ rows

    def change(self, session: Session, table: ChangingTable | None = None) -> None:
        """Some rows of the table, or of one of the session's."""
        table = table or self.random.choice(session.tables)
        session.touched[table.name] = table
        dice = self.random.random()
        if table.append_only:
            self._append(session, table, 8)
        elif dice < 0.5:
            for _ in range(self.random.choice([1, 2, 10])):
                self.insert(session, table)
        elif dice < 0.75 and table.columns:
            column = self.random.choice(table.columns)
            session.execute(
                f"UPDATE {table.name} SET {quoted(column.name)} = %s WHERE {_is_key(table)}",
                [column.draw(self.random), *self._key(table)],
            )
        elif dice < 0.87:
            self._move_a_key(session, table)
        elif dice < 0.99:
            session.execute(f"DELETE FROM {table.name} WHERE {_is_key(table)}", self._key(table))
        else:
            session.execute(f"TRUNCATE {table.name}")

    def _append(self, session: Session, table: ChangingTable, most: int) -> None:
        if table.rows > _MOST_LOG_ROWS:
            session.execute(f"TRUNCATE {table.name}")
            table.rows = 0
        for _ in range(self.random.randint(1, most)):
            self.insert(session, table)
            table.rows += 1

    def insert(self, session: Session, table: ChangingTable) -> None:
        """A row, unless its key is taken."""
        names = [*table.key, *(quoted(column.name) for column in table.columns)]
        if not names:
            session.execute(f"INSERT INTO {table.name} DEFAULT VALUES")
            return
        values = [*self._key(table), *(column.draw(self.random) for column in table.columns)]
        session.execute(
            f"INSERT INTO {table.name} ({', '.join(names)})"
            f" VALUES ({', '.join(['%s'] * len(names))}) ON CONFLICT DO NOTHING",
            values,
        )

    def _move_a_key(self, session: Session, table: ChangingTable) -> None:
        moved = self._key(table)
        found = session.execute(f"SELECT FROM {table.name} WHERE {_is_key(table)}", moved)
        if found.fetchone() is None:
            settings = ", ".join(f"{name} = %s" for name in table.key)
            session.execute(
                f"UPDATE {table.name} SET {settings} WHERE {_is_key(table)}",
                [*moved, *self._key(table)],
            )

    def _much(self, session: Session) -> None:
        """More than is sent after the commit: a part of it is on its way before."""
        table = self.random.choice(session.tables)
        session.touched[table.name] = table
        session.is_giant = True
        if table.append_only or not table.columns:
            return self._append(session, table, 200) if table.append_only else None
        for _ in range(self.random.choice([10, 40])):
            column = self.random.choice(table.columns)
            self.insert(session, table)
            session.execute(
                f"UPDATE {table.name} SET {quoted(column.name)} = %s", [column.draw(self.random)]
            )
            if self.random.random() < 0.2:
                self._savepoint(session)
        return None

    def _key(self, table: ChangingTable) -> list[str | None]:
        return [draw(self.random) for _, draw in table.key.values()]


def _is_key(table: ChangingTable) -> str:
    return " AND ".join(f"{name} = %s" for name in table.key)
