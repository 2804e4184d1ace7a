"""Has an earlier server write a store: ``python -m tests.fanout.store.formats.make COMMIT...``.

What it does is what ``test_formats.py`` expects of each: 20 rows copied, then changes of each kind.
"""

import gzip
import sys
import tempfile
from pathlib import Path

from tests.fanout.store.formats.description import HERE
from tests.support import older
from tests.support.postgres import Database, data_directory, new_server
from tests.support.processes import wait_until
from tests.support.server.fanout_program import fanout

DEFINITIONS = (
    "CREATE TABLE users (id int PRIMARY KEY, name text)",
    "INSERT INTO users SELECT i, 'name ' || i FROM generate_series(1, 20) i",
    "CREATE TABLE days (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
    "CREATE TABLE days_1 PARTITION OF days FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
    "CREATE TABLE days_2 PARTITION OF days FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')",
    "INSERT INTO days SELECT i, '2026-01-31'::date + i % 2 FROM generate_series(1, 20) i",
)
CHANGES = (
    "INSERT INTO users VALUES (21, 'inserted')",
    "UPDATE users SET name = 'updated' WHERE id <= 2",
    "DELETE FROM users WHERE id = 3",
    "UPDATE days SET day = '2026-02-02' WHERE id = 1",
)


def make(commit: str, directory: Path) -> bytes:
    """The data file of a store that the commit's server has written."""
    with data_directory() as data, new_server(data, 18) as postgres:
        database = Database(postgres, "postgres")
        with database.connect() as owner:
            for statement in DEFINITIONS:
                owner.execute(statement)
        server = fanout(
            directory,
            database.dsn,
            "{ table = users }, { table = days }",
            "state.max_size = 16 MB\n",
        )
        older.run_as(server.program, older.checkout(commit, directory / "tree"))
        with server.program:
            server.program.wait_ready()
            with database.connect() as owner:
                for statement in CHANGES:
                    owner.execute(statement)

            def written() -> bool:
                journals = [server.table(f"public.{name}")["journal"] for name in ("users", "days")]
                return [journal["entries"] for journal in journals] == [4, 2]

            wait_until(written, "all changes written")
    return (directory / "state" / "data.mdb").read_bytes()


if __name__ == "__main__":
    for commit in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as directory:
            stored = gzip.compress(make(commit, Path(directory)), mtime=0)
        (HERE / f"{commit}.mdb.gz").write_bytes(stored)
        print(commit, len(stored), "bytes")
