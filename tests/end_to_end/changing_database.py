"""Sessions that write to changing tables, driven by one hand, step by step, from a seed.

Each table belongs to one session, which is its only writer, so that what it notes
with the oracle before each commit is what the table holds after it.
"""

import random
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

import psycopg

from tests.end_to_end.changing_table import ChangingTable, Column, Kind, quoted
from tests.end_to_end.oracle import SESSION, Connection, Oracle
from tests.end_to_end.workload import TEXTS, one_of

_MOST_LOG_ROWS = 300
_PATIENCE = "SET statement_timeout = '120s'"


class _Session:
    """A connection and what its transaction has done so far."""

    def __init__(self, dsn: str, number: int, tables: list[ChangingTable]) -> None:
        self.tables = tables
        self.name = f"prepared_{number}"
        self.is_open = self.is_prepared = False
        self.touched: dict[str, ChangingTable] = {}
        self.savepoints = 0
        self._dsn = dsn
        self.connection = self._connect()

    def _connect(self) -> Connection:
        connection = psycopg.connect(self._dsn, autocommit=True, options=SESSION)
        connection.execute(_PATIENCE)
        return connection

    def reconnect(self) -> None:
        """The database was restarted: only what was prepared is left."""
        self.connection.close()
        self.connection = self._connect()
        if not self.is_prepared:
            self.forget()

    def forget(self) -> None:
        """No transaction is under way."""
        self.is_open = self.is_prepared = False
        self.touched = {}
        self.savepoints = 0

    def execute(self, statement: str, values: Iterable[Any] | None = None) -> Any:
        """Run it; in a transaction of its own, unless one was begun."""
        return self.connection.execute(statement.encode(), None if values is None else [*values])


class ChangingDatabase:
    """All sessions. ``publications``: those of the tables with keys, and of those without."""

    def __init__(self, dsn: str, seed: int, oracle: Oracle, publications: tuple[str, str]) -> None:
        self.random = random.Random(f"rows {seed}")
        self.tables = [ChangingTable(f"t_{kind.name.lower()}", kind) for kind in Kind]
        self.commits = 0
        self.done: list[str] = []
        """What changed tables' forms, for whom reads why it failed."""
        self._dsn = dsn
        self._oracle = oracle
        self._publications = publications
        self._log_rows = 0
        with closing(_Session(dsn, 0, []).connection) as owner:
            owner.execute("CREATE SCHEMA form")
            for table in self.tables:
                for statement in [*table.created(self.random), table.new_form()]:
                    owner.execute(statement.encode())
                oracle.start(table.name, table.form)
        self._sessions = [_Session(dsn, n, self.tables[n::3]) for n in range(3)]

    def reconnect(self) -> None:
        """The database was restarted."""
        for session in self._sessions:
            session.reconnect()

    def close(self) -> None:
        """End all sessions; what they have not committed is rolled back."""
        for session in self._sessions:
            session.connection.close()

    def finish(self) -> None:
        """Commit what is open."""
        for session in self._sessions:
            if session.is_prepared:
                self._end_prepared(session, "COMMIT")
            elif session.is_open:
                self._commit(session)

    def much(self) -> None:
        """A transaction that is larger than others, of each session that can."""
        for session in self._sessions:
            if not session.is_prepared:
                if not session.is_open:
                    session.execute("BEGIN")
                    session.is_open = True
                self._much(session)
                self._commit(session)

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
            self._change(session)
        elif dice < 0.6:
            self._change(session)
        elif dice < 0.75:
            self._savepoint(session)
        elif dice < 0.78:
            self._much(session)
        elif dice < 0.82:
            self._prepare(session)
        elif dice < 0.95:
            self._commit(session)
        else:
            session.execute("ROLLBACK")
            session.forget()

    def change_form(self) -> None:
        """Another form of one of the tables, noted as a transaction of its own."""
        session = self.random.choice(self._sessions)
        if session.is_prepared:
            self._end_prepared(session, "COMMIT")
        elif session.is_open:
            self._commit(session)
        table = self.random.choice(session.tables)
        ways: list[Callable[[_Session, ChangingTable], str]] = [
            self._add_column,
            self._add_column,
            self._drop_column,
            self._rename_column,
            self._change_type,
            self._rewrite,
            self._make_again,
            self._leave_publication,
        ]
        if table.kind in (Kind.FULL, Kind.INDEXED, Kind.PAIR):
            ways += [self._change_identity] * 2
        if table.kind is Kind.PARTS:
            ways += [self._move_partition] * 3
        session.execute("BEGIN")
        session.is_open = True
        if self.random.random() < 0.5:
            self._change(session, table)
        self.done.append(f"{table.name}: {self.random.choice(ways)(session, table)}")
        session.touched[table.name] = table
        session.execute(table.new_form())
        if session.is_open:
            if self.random.random() < 0.5:
                self._change(session, table)
            self._commit(session, blind=True)

    # ------------------------------------------------------------ how transactions go

    def _commit(self, session: _Session, *, blind: bool = False) -> None:
        self._note(session, blind=blind)
        session.execute("COMMIT")
        session.forget()
        self.commits += 1

    def _note(self, session: _Session, *, blind: bool = False) -> None:
        for table in session.touched.values():
            self._oracle.note(session.connection, table.name, table.form, blind=blind)

    def _prepare(self, session: _Session) -> None:
        self._note(session)
        session.execute(f"PREPARE TRANSACTION '{session.name}'")
        session.is_open, session.is_prepared = False, True

    def _end_prepared(self, session: _Session, outcome: str) -> None:
        session.execute(f"{outcome} PREPARED '{session.name}'")
        session.forget()
        self.commits += outcome == "COMMIT"

    def _savepoint(self, session: _Session) -> None:
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

    def _change(self, session: _Session, table: ChangingTable | None = None) -> None:
        table = table or self.random.choice(session.tables)
        session.touched[table.name] = table
        dice = self.random.random()
        if table.append_only:
            self._append(session, table, 8)
        elif dice < 0.5:
            for _ in range(self.random.choice([1, 2, 10])):
                self._insert(session, table)
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

    def _append(self, session: _Session, table: ChangingTable, most: int) -> None:
        if self._log_rows > _MOST_LOG_ROWS:
            session.execute(f"TRUNCATE {table.name}")
            self._log_rows = 0
        for _ in range(self.random.randint(1, most)):
            self._insert(session, table)
            self._log_rows += 1

    def _insert(self, session: _Session, table: ChangingTable) -> None:
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

    def _move_a_key(self, session: _Session, table: ChangingTable) -> None:
        moved = self._key(table)
        found = session.execute(f"SELECT FROM {table.name} WHERE {_is_key(table)}", moved)
        if found.fetchone() is None:
            settings = ", ".join(f"{name} = %s" for name in table.key)
            session.execute(
                f"UPDATE {table.name} SET {settings} WHERE {_is_key(table)}",
                [*moved, *self._key(table)],
            )

    def _much(self, session: _Session) -> None:
        """More than is sent after the commit: a part of it is on its way before."""
        table = self.random.choice(session.tables)
        session.touched[table.name] = table
        if table.append_only or not table.columns:
            return self._append(session, table, 200) if table.append_only else None
        for _ in range(self.random.choice([10, 40])):
            column = self.random.choice(table.columns)
            self._insert(session, table)
            session.execute(
                f"UPDATE {table.name} SET {quoted(column.name)} = %s", [column.draw(self.random)]
            )
            if self.random.random() < 0.2:
                self._savepoint(session)
        return None

    def _key(self, table: ChangingTable) -> list[str | None]:
        return [draw(self.random) for _, draw in table.key.values()]

    # ------------------------------------------------------------ forms

    def _add_column(self, session: _Session, table: ChangingTable) -> str:
        column = table.new_column(self.random)
        statement = f"ALTER TABLE {table.name} ADD COLUMN {quoted(column.name)} {column.type}"
        value = column.draw(self.random)
        if value is not None and self.random.random() < 0.5:
            literal = session.execute("SELECT quote_literal(%s)", [value]).fetchone()[0]
            statement += f" DEFAULT {literal}"
        session.execute(statement)
        table.columns.append(column)
        return f"add {column.name} {column.type}"

    def _drop_column(self, session: _Session, table: ChangingTable) -> str:
        if len(table.columns) < 2:
            return self._add_column(session, table)
        column = table.columns.pop(self.random.randrange(len(table.columns)))
        session.execute(f"ALTER TABLE {table.name} DROP COLUMN {quoted(column.name)}")
        return f"drop {column.name}"

    def _rename_column(self, session: _Session, table: ChangingTable) -> str:
        number = self.random.randrange(len(table.columns))
        old, new = table.columns[number], table.new_column(self.random).name
        session.execute(
            f"ALTER TABLE {table.name} RENAME COLUMN {quoted(old.name)} TO {quoted(new)}"
        )
        table.columns[number] = Column(new, old.type, old.draw)
        return f"rename {old.name} to {new}"

    def _change_type(self, session: _Session, table: ChangingTable) -> str:
        number = self.random.randrange(len(table.columns))
        old = table.columns[number]
        name = quoted(old.name)
        session.execute(f"ALTER TABLE {table.name} ALTER {name} DROP DEFAULT")
        session.execute(
            f"ALTER TABLE {table.name} ALTER {name} TYPE text USING {name}::text || ' as text'"
        )
        table.columns[number] = Column(old.name, "text", one_of(TEXTS))
        return f"{old.name} becomes text"

    def _rewrite(self, session: _Session, table: ChangingTable) -> str:
        """Other values, and the stream says nothing."""
        column = self.random.choice(table.columns)
        name = quoted(column.name)
        null = f"CASE WHEN random() >= 0 THEN NULL ELSE {name} END"
        session.execute(f"ALTER TABLE {table.name} ALTER {name} TYPE {column.type} USING {null}")
        return f"rewrite {column.name}"

    def _make_again(self, session: _Session, table: ChangingTable) -> str:
        session.execute(f"DROP TABLE {table.name}")
        for statement in table.created(self.random):
            session.execute(statement)
        for _ in range(5):
            self._insert(session, table)
        if table.append_only:
            self._log_rows = 5
        return "drop and make again"

    def _change_identity(self, session: _Session, table: ChangingTable) -> str:
        if table.kind is Kind.INDEXED:
            way = self.random.choice(
                [f"ALTER TABLE {table.name} REPLICA IDENTITY FULL", table.identity_by_index()]
            )
        elif table.kind is Kind.FULL:
            way = f"ALTER TABLE {table.name} REPLICA IDENTITY {self._identity()}"
        else:
            order = ", ".join(self.random.sample(list(table.key), len(table.key)))
            way = (
                f"ALTER TABLE {table.name} DROP CONSTRAINT {table.name}_pkey,"
                f" ADD PRIMARY KEY ({order})"
            )
        session.execute(way)
        return way

    def _identity(self) -> str:
        return self.random.choice(["FULL", "DEFAULT"])

    def _move_partition(self, session: _Session, table: ChangingTable) -> str:
        name, low = table.partition(self.random)
        way = self.random.choice(["truncate", "exchange", "reattach"])
        if way == "truncate":
            session.execute(f"TRUNCATE {name}")
            return f"truncate {name}"
        session.execute(f"ALTER TABLE {table.name} DETACH PARTITION {name}")
        if way == "exchange":
            session.execute(f"UPDATE {name} SET id = {low} + (id + 7) % 15 WHERE name = 'never'")
            session.execute(f"DELETE FROM {name} WHERE id % 2 = 0")
        session.execute(
            f"ALTER TABLE {table.name} ATTACH PARTITION {name}"
            f" FOR VALUES FROM ({low}) TO ({low + 15})"
        )
        return f"{way} {name}"

    def _leave_publication(self, session: _Session, table: ChangingTable) -> str:
        """In transactions of their own: out of it, a change that nobody sees, and in again."""
        publication = self._publications[table.append_only]
        self._commit(session, blind=True)
        found = session.execute(
            "SELECT FROM pg_publication_tables WHERE pubname = %s AND tablename = %s",
            [publication, table.name],
        )
        session.execute("BEGIN")
        session.is_open = True
        if found.fetchone() is None:
            return "is in no publication yet"
        session.execute(f"ALTER PUBLICATION {publication} DROP TABLE {table.name}")
        session.touched[table.name] = table
        self._commit(session, blind=True)
        session.execute("BEGIN")
        session.is_open = True
        self._change(session, table)
        self._commit(session, blind=True)
        session.execute("BEGIN")
        session.is_open = True
        if (
            session.execute(
                "SELECT FROM pg_publication_tables WHERE pubname = %s AND tablename = %s",
                [publication, table.name],
            ).fetchone()
            is None
        ):
            session.execute(f"ALTER PUBLICATION {publication} ADD TABLE {table.name}")
        return f"out of {publication} and in again"


def _is_key(table: ChangingTable) -> str:
    return " AND ".join(f"{name} = %s" for name in table.key)
