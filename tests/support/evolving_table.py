"""PostgreSQL's table takes other columns and another key; a target has its rows after each step."""

from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

from laredo_spark.session import quoted
from laredo_spark.sync.sync import SyncOutcome
from tests.support.lakehouse import Kept
from tests.support.postgres import Database
from tests.support.postgres_road import Road, Rows, in_order, road

TABLE = "pairs"
STEPS = {
    "columns are added": (
        "ALTER TABLE pairs ADD code text NOT NULL DEFAULT '7', ADD price numeric(5,1),"
        " ADD seen timestamp",
        "UPDATE pairs SET price = at + 0.5, seen = '2026-01-02 03:04:05' WHERE at < 20",
    ),
    "a column is renamed": ("ALTER TABLE pairs RENAME price TO cost",),
    "two columns exchange their names": (
        "ALTER TABLE pairs RENAME code TO other",
        "ALTER TABLE pairs RENAME place TO code",
        "ALTER TABLE pairs RENAME other TO place",
    ),
    "int becomes bigint": (
        "ALTER TABLE pairs ALTER amount TYPE bigint",
        "UPDATE pairs SET amount = 9007199254740993 WHERE at = 3",
    ),
    "bigint becomes smallint": (
        "ALTER TABLE pairs ALTER amount TYPE smallint USING (amount % 100)::smallint",
    ),
    "text becomes int": (
        "ALTER TABLE pairs ALTER place DROP DEFAULT, ALTER place TYPE int USING place::int",
    ),
    "int becomes text": ("ALTER TABLE pairs ALTER place TYPE text",),
    "a numeric has more digits": ("ALTER TABLE pairs ALTER cost TYPE numeric(12,4)",),
    "a timestamp has a zone": ("ALTER TABLE pairs ALTER seen TYPE timestamptz",),
    "a column becomes nullable": (
        "ALTER TABLE pairs ALTER place DROP NOT NULL",
        "UPDATE pairs SET place = NULL WHERE at = 5",
    ),
    "a name has capitals": ('ALTER TABLE pairs RENAME seen TO "Seen"',),
    "a name has other characters": ('ALTER TABLE pairs RENAME "Seen" TO "seen, at = (UTC);"',),
    "a column is dropped": ("ALTER TABLE pairs DROP cost",),
    "the key is another one": (
        "ALTER TABLE pairs DROP CONSTRAINT pairs_pkey, ADD PRIMARY KEY (at)",
        "UPDATE pairs SET code = 'everyone''s'",
    ),
    "all rows are truncated": (
        "TRUNCATE pairs",
        "INSERT INTO pairs (amount, code, at) SELECT n, 'new', n FROM generate_series(1, 20) n",
    ),
    "it is dropped and made again": (
        "DROP TABLE pairs",
        "CREATE TABLE pairs (at bigint PRIMARY KEY, code bool, amount text)",
        "INSERT INTO pairs SELECT n, n % 2 = 0, 'made ' || n FROM generate_series(1, 20) n",
    ),
}


def rows_after_each_step(kept: Kept, database: Database, directory: Path) -> None:
    """Each step writes the target anew; the changes after it are merged."""
    with road(directory, database) as made:
        made.do(
            TABLE,
            "INSERT INTO pairs SELECT n, chr(97 + n % 3), n FROM generate_series(1, 30) n",
        )
        _synced(kept, made, SyncOutcome.REBUILT, "first")
        for number, (name, statements) in enumerate(STEPS.items()):
            made.do(TABLE, *statements)
            _synced(kept, made, SyncOutcome.REBUILT, name)
            made.do(
                TABLE,
                f"UPDATE pairs SET at = at + 1000 WHERE at % 5 = {number % 5}",
                "DELETE FROM pairs WHERE at = (SELECT min(at) FROM pairs)",
            )
            _synced(kept, made, SyncOutcome.MERGED, name)


def _synced(kept: Kept, made: Road, outcome: SyncOutcome, step: str) -> None:
    done = kept.sync_as_written(made.place(TABLE))
    assert done.outcome is outcome, (step, done)
    frame, state = kept.found(), made.states[TABLE][-1]
    assert frame.columns == state.columns, step
    wanted = [tuple(map(_without_zone, row)) for row in state.rows]
    assert in_order(_rows(frame)) == in_order(wanted), step


def _without_zone(value: object) -> object:
    has_zone = isinstance(value, datetime) and value.tzinfo is not None
    return value.astimezone(UTC).replace(tzinfo=None) if has_zone else value


def _rows(frame: DataFrame) -> Rows:
    """Rows with times in UTC, which is the session's zone."""
    columns = [
        F.col(quoted(name)).cast("timestamp_ntz" if kind == "timestamp" else kind)
        for name, kind in frame.dtypes
    ]
    return [tuple(row) for row in frame.select(*columns).collect()]
