"""Random transactions while copying and while connections are killed: at every commit the journal
holds exactly what PostgreSQL held, known from the transactions themselves."""

import random
import threading
from collections.abc import Callable

import pytest

from laredo_model import value_sql
from tests.support import drawn
from tests.support.ingest import RunningIngest, Start
from tests.support.postgres import Database
from tests.support.server.journal_oracle import Commits, Replay, Rows

_TABLES = {
    "public.simple": "id int PRIMARY KEY, a numeric, b text, big text",
    "public.composite": "x text, y int, v jsonb, big text, PRIMARY KEY (y, x)",
    "public.whole": "id uuid PRIMARY KEY, v float8, big text",
}
_SETUP = [
    *(f"CREATE TABLE {name} ({columns})" for name, columns in _TABLES.items()),
    *(f"ALTER TABLE {name} ALTER big SET STORAGE EXTERNAL" for name in _TABLES),
    "ALTER TABLE whole REPLICA IDENTITY FULL",
]
_INSERTS = {
    "public.simple": "VALUES ({n}, {n} / 7.0, E'é\\n' || {n}, repeat(md5('{n}'), 90))",
    "public.composite": "VALUES ('k' || {n}, {n} % 5, '{{\"n\": {n}}}', repeat(md5('{n}'), 90))",
    "public.whole": "VALUES (md5('{n}')::uuid, {n} / 3.0, repeat(md5('{n}'), 90))",
}
_UPDATES = {
    "public.simple": ["SET a = a + 1", "SET id = id + 100000", "SET big = left(big, -1)"],
    "public.composite": ["SET v = v || '[1]'", "SET x = x || 'x'", "SET y = y + 1, big = NULL"],
    "public.whole": ["SET v = 'NaN'", "SET id = gen_random_uuid()", "SET v = v * 1e20"],
}


class Workload:
    """The only writer: it knows what each of its commits made of every table."""

    def __init__(self, database: Database, seed: int) -> None:
        self.random = random.Random(seed)
        self._connection = database.connect()
        for setting, value in value_sql.SESSION.items():
            if setting != "search_path":
                self._connection.execute(f"SET {setting} = '{value}'".encode())
        self._number = 0
        self._rows: dict[str, Rows] = {name: {} for name in _TABLES}
        self.commits = Commits()

    def execute(self, statement: str) -> int:
        return self._connection.execute(statement.encode()).rowcount

    def transaction(self, lines: Callable[[str], Rows]) -> None:
        """One transaction of several statements, some of them rolled back to a savepoint."""
        touched: set[str] = set()
        before = self._lsn()
        self.execute("BEGIN")
        for _ in range(self.random.randint(1, 8)):
            name = self.random.choice(list(_TABLES))
            if self.random.random() < 0.15:
                self.execute("SAVEPOINT s")
                self._statement(name)
                self.execute("ROLLBACK TO s")
            else:
                self._statement(name)
                touched.add(name)
        rolled_back = self.random.random() < 0.1
        if not rolled_back:
            for name in touched:
                self._rows[name] = lines(name)
        self.execute("ROLLBACK" if rolled_back else "COMMIT")
        after = self._lsn()
        assert after >= before
        if not rolled_back:
            self.commits.add(after, self._rows)

    def _statement(self, name: str) -> None:
        dice = self.random.random()
        if dice < 0.5 or not self._rows[name]:
            for _ in range(self.random.randint(1, 4)):
                self._number += 1
                values = _INSERTS[name].format(n=self._number)
                self.execute(f"INSERT INTO {name} {values}")
        elif dice < 0.85:
            change = self.random.choice(_UPDATES[name])
            self.execute(f"UPDATE {name} {change} WHERE ctid IN ({self._some(name)})")
        elif dice < 0.98:
            self.execute(f"DELETE FROM {name} WHERE ctid IN ({self._some(name)})")
        else:
            self.execute(f"TRUNCATE {name}")

    def _some(self, name: str) -> str:
        count = self.random.randint(1, 4)
        skip = self.random.randint(0, max(0, len(self._rows[name]) - 1))
        return f"SELECT ctid FROM {name} OFFSET {skip} LIMIT {count}"

    def lines(self, name: str, selected: str) -> Rows:
        """The rows of this table as the running transaction sees them."""
        found = self._connection.execute(selected.encode()).fetchall()
        return {str(key).encode(): str(line).encode() for key, line in found}

    def _lsn(self) -> int:
        row = self._connection.execute(
            "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
        ).fetchone()
        assert row is not None
        return int(str(row[0]))

    def close(self) -> None:
        self._connection.close()


def _selected(ingest: RunningIngest, name: str) -> str:
    return f"SELECT key, line::text FROM ({ingest.rows_sql(name)}) q"


@pytest.mark.parametrize("seed", drawn.first(1, [1, 2, 3]))
def test_every_commit_is_in_the_journal_as_it_was(
    database: Database, ingesting: Start, seed: int
) -> None:
    workload = Workload(database, seed)
    for statement in _SETUP:
        workload.execute(statement)
    for number in range(1, 400):
        for name in _TABLES:
            workload.execute(f"INSERT INTO {name} " + _INSERTS[name].format(n=-number))
    ingest = ingesting(*_TABLES, range_bytes=128 << 10, heartbeat_interval=0.2)
    selected = {name: _selected(ingest, name) for name in _TABLES}
    stop = threading.Event()

    def lines(name: str) -> Rows:
        return workload.lines(name, selected[name])

    def kill() -> None:
        chance = random.Random(seed)
        with database.connect() as connection:
            while not stop.wait(chance.uniform(0.1, 0.5)):
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE"
                    " datname = current_database() AND application_name LIKE %s",
                    (f"% {chance.choice(['stream', 'copy', 'side'])}",),
                )

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        while not all(ingest.is_live(name) for name in _TABLES):
            workload.transaction(lines)
            assert ingest.error is None
        starts = [Replay(ingest, name) for name in _TABLES]
        for _ in range(300):
            workload.transaction(lines)
    finally:
        stop.set()
        killer.join()
    ingest.assert_equal()
    for start in starts:
        assert start.compare(workload.commits) > 50
    workload.close()
