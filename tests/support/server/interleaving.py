"""Sessions whose transactions overlap, driven by one hand: nested, prepared, rolled back."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from laredo_model import value_sql
from tests.support.ingest import RunningIngest
from tests.support.postgres import Database
from tests.support.server.journal_oracle import Commits, Rows

TABLES = {
    "public.plain": "id int PRIMARY KEY, a numeric, big text",
    "public.pair": "x text, y int, a numeric, big text, PRIMARY KEY (y, x)",
    "public.whole": "id uuid PRIMARY KEY, a float8, v jsonb, big text",
}
_INSERTED = {
    "public.plain": "n, n / 7.0, repeat(md5(n::text), 90)",
    "public.pair": "'k' || n, mod(n, 5), n, repeat(md5(n::text), 90)",
    "public.whole": "md5(n::text)::uuid, n / 3.0, '[\"é\"]', repeat(md5(n::text), 90)",
}
_UPDATES = {
    "public.plain": ["a = a + 1", "id = id + 1000000", "big = left(big, -1)"],
    "public.pair": ["a = a + 1", "x = x || 'x'", "y = y + 1, big = NULL"],
    "public.whole": ["a = 'NaN'", "id = gen_random_uuid()", "v = v || '[1]'"],
}


class Session:
    """One connection and what its transaction has done so far."""

    def __init__(self, database: Database, number: int) -> None:
        self.name = f"prepared_{database.name}_{number}"
        self._connection = database.connect()
        self.is_open = self.is_prepared = False
        self.touched: set[str] = set()
        self.savepoints = 0

    def execute(self, statement: str) -> None:
        self._connection.execute(statement.encode())

    def close(self) -> None:
        if self.is_prepared:
            self.execute(f"ROLLBACK PREPARED '{self.name}'")
        self._connection.close()


class Interleaving:
    """The only writer: after each commit it looks at what the tables hold."""

    def __init__(self, database: Database, seed: int, sessions: int = 4) -> None:
        self.random = random.Random(seed)
        self.commits = Commits()
        self._looking = database.connect()
        for setting, value in value_sql.SESSION.items():
            if setting != "search_path":
                self._looking.execute(f"SET {setting} = '{value}'".encode())
        self._looking.execute("CREATE SEQUENCE numbers")
        for name, columns in TABLES.items():
            self._looking.execute(f"CREATE TABLE {name} ({columns})".encode())
            self._looking.execute(f"ALTER TABLE {name} ALTER big SET STORAGE EXTERNAL".encode())
            self._looking.execute(_insert(name, 50).encode())
        self._looking.execute("ALTER TABLE whole REPLICA IDENTITY FULL")
        self._sessions = [Session(database, number) for number in range(sessions)]
        self._rows: dict[str, Rows] = {}
        self._selected: dict[str, str] = {}

    def begin(self, ingest: RunningIngest) -> None:
        """Read keys and lines as this ingest's copy does, from now on."""
        self._selected = {name: ingest.rows_sql(name) for name in TABLES}
        self._note(set(TABLES))

    def step(self) -> None:
        """Something of one of the sessions."""
        session = self.random.choice(self._sessions)
        if session.is_prepared:
            self._end(session, f"{self._outcome()} PREPARED '{session.name}'")
        elif not session.is_open:
            session.execute("BEGIN")
            session.is_open = True
            self._change(session)
        elif self.random.random() < 0.85:
            self._go_on(session)
        elif self.random.random() < 0.2:
            session.execute(f"PREPARE TRANSACTION '{session.name}'")
            session.is_prepared = True
        else:
            self._end(session, self._outcome())

    def finish(self) -> None:
        """Commit what is open."""
        for session in self._sessions:
            prepared = f" PREPARED '{session.name}'" if session.is_prepared else ""
            if session.is_open:
                self._end(session, f"COMMIT{prepared}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for session in self._sessions:
            session.close()
        self._looking.close()

    def _outcome(self) -> str:
        return self.random.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"])

    def _go_on(self, session: Session) -> None:
        dice = self.random.random()
        if dice < 0.25:
            session.savepoints += 1
            session.execute(f"SAVEPOINT s{session.savepoints}")
        elif dice < 0.45 and session.savepoints:
            number = self.random.randint(1, session.savepoints)
            if dice < 0.38:
                session.execute(f"ROLLBACK TO s{number}")
                session.savepoints = number
            else:
                session.execute(f"RELEASE s{number}")
                session.savepoints = number - 1
        elif dice < 0.5:
            self._exceptions(session)
        elif dice < 0.53:
            self._truncate(session)
        elif dice < 0.6:
            transactional = self.random.choice(["true", "false"])
            session.execute(
                f"SELECT pg_logical_emit_message({transactional}, 'laredo', 'x:look:1')"
            )
        else:
            self._change(session)

    def _change(self, session: Session) -> None:
        dice = self.random.random()
        name = self.random.choice(list(TABLES))
        session.touched.add(name)
        some = (
            f"SELECT ctid FROM {name} OFFSET {self.random.randint(0, 80)}"
            f" LIMIT {self.random.randint(1, 5)} FOR UPDATE SKIP LOCKED"
        )
        if dice < 0.5:
            session.execute(_insert(name, self.random.choice([1, 3, 25])))
        elif dice < 0.85:
            change = self.random.choice(_UPDATES[name])
            session.execute(f"UPDATE {name} SET {change} WHERE ctid IN ({some})")
        else:
            session.execute(f"DELETE FROM {name} WHERE ctid IN ({some})")

    def _exceptions(self, session: Session) -> None:
        """Subtransactions without end, every other rolled back."""
        name = self.random.choice(list(TABLES))
        session.touched.add(name)
        session.execute(
            f"DO $$ BEGIN FOR i IN 1..6 LOOP BEGIN {_insert(name, 2)};"
            " IF mod(i, 2) = 1 THEN RAISE 'x'; END IF;"
            " EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END $$"
        )

    def _truncate(self, session: Session) -> None:
        """As the transaction's last statement: it keeps the others away from the table."""
        name = self.random.choice(list(TABLES))
        if any(name in other.touched for other in self._sessions if other is not session):
            return
        session.touched.add(name)
        session.execute(f"TRUNCATE {name}")
        session.execute(_insert(name, 30))
        self._end(session, self._outcome())

    def _end(self, session: Session, statement: str) -> None:
        session.execute(statement)
        if statement.startswith("COMMIT"):
            self._note(session.touched)
        session.is_open = session.is_prepared = False
        session.touched.clear()
        session.savepoints = 0

    def _note(self, touched: set[str]) -> None:
        for name in touched:
            found = self._looking.execute(
                f"SELECT key, line::text FROM ({self._selected[name]}) q".encode()
            ).fetchall()
            self._rows[name] = {str(key).encode(): str(line).encode() for key, line in found}
        found = self._looking.execute(
            "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
        ).fetchall()
        self.commits.add(int(str(found[0][0])), self._rows)


def _insert(name: str, count: int) -> str:
    numbers = f"SELECT nextval('numbers')::int AS n FROM generate_series(1, {count})"
    return f"INSERT INTO {name} SELECT {_INSERTED[name]} FROM ({numbers}) q"


@contextmanager
def killing(database: Database, seed: int, *roles: str) -> Iterator[None]:
    """Connections of these roles are ended, again and again."""
    stop = threading.Event()

    def kill() -> None:
        chance = random.Random(seed)
        with database.connect() as connection:
            while not stop.wait(chance.uniform(0.2, 0.6)):
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE"
                    " datname = current_database() AND application_name LIKE %s",
                    (f"% {chance.choice(roles)}",),
                )

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        stop.set()
        killer.join()
