"""Random transactions over three tables: every common type, NULLs, composite keys, truncation."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg

from tests.support.oracle import SESSION, Connection, Oracle
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S

TEXTS = ["", " ", "plain", 'quote " and \\ back', "línea\nnueva\ttab", "\u2028 \U0001f600"]
TEXTS += ["\x01\x7f", "NULL", "{}", "x" * 300]
# Neither a top-level null, which a line can't tell from NULL, nor raw line breaks, which it
# replaces, nor array bounds, which it drops: by the format's rules.
JSONS = ["{}", '{"a": 1, "a": 2}', "[1, [2, [3, []]]]", '["\\u00e9\\n"]', "1" * 30]
JSONS += ['{"deep": ' + '{"x": ' * 60 + "1" + "}" * 61, '{"big": 12345678901234567890, "f": 1e-7}']
FLOATS = ["NaN", "Infinity", "-Infinity", "0", "-0", "1e15", "1e-5", "123456.789", "1.7e308"]
NUMERICS = ["NaN", "0.00", "1.10", "-98765432109876543210.123456789", "Infinity", "1e-20"]
STAMPS = ["infinity", "-infinity", "0044-03-15 10:00:00 BC", "2024-02-29 23:59:59.1", "12024-01-01"]
INTEGERS = ["9223372036854775807", "-9223372036854775808", "0", "9007199254740993"]


@dataclass(frozen=True)
class Table:
    """A table of the workload: how it is made, its key, and how a value of each column is drawn."""

    name: str
    ddl: str
    key_fields: list[str]
    columns: dict[str, Callable[[random.Random], str | None]] = field(default_factory=dict)


def one_of(values: list[str], *, null: bool = True) -> Callable[[random.Random], str | None]:
    """One of the values, or sometimes NULL."""
    return lambda rng: None if null and rng.random() < 0.15 else rng.choice(values)


def number(low: int, high: int) -> Callable[[random.Random], str]:
    """A number between, as text."""
    return lambda rng: str(rng.randint(low, high))


KINDS = Table(
    "kinds",
    """CREATE TABLE kinds (
        id bigint PRIMARY KEY, big bigint, small smallint, flag boolean, real4 real, real8 float8,
        exact numeric, money_like numeric(12,2), words text, letters varchar(4000), fixed char(5),
        bytes bytea, day date, clock time, zoned timestamptz, bare timestamp, span interval,
        plain json, binary_json jsonb, ident uuid, numbers int[], texts text[], decimals numeric[],
        host inet, bits bit(3))""",
    ["id"],
    {
        "id": number(1, 60),
        "big": one_of(INTEGERS),
        "small": one_of(["-32768", "7"]),
        "flag": one_of(["t", "f"]),
        "real4": one_of(["NaN", "0.1", "1e10", "-Infinity"]),
        "real8": one_of(FLOATS),
        "exact": one_of(NUMERICS),
        "money_like": one_of(["NaN", "0", "12345678.90"]),
        "words": one_of(TEXTS),
        "letters": one_of(TEXTS),
        "fixed": one_of(["", "ab", "abcde"]),
        "bytes": one_of(["\\x", "\\xdeadbeef", "\\x00"]),
        "day": one_of(["infinity", "0044-03-15 BC", "2024-02-29"]),
        "clock": one_of(["00:00", "23:59:59.999999"]),
        "zoned": one_of(STAMPS),
        "bare": one_of(STAMPS),
        "span": one_of(["1 year -2 days 03:04:05.6", "0"]),
        "plain": one_of([*JSONS, '{"a" :  1}']),
        "binary_json": one_of(JSONS),
        "ident": one_of(["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
        "numbers": one_of(["{}", "{1,NULL,3}", "{{1,2},{3,4}}"]),
        "texts": one_of(['{"a b",NULL,"NULL","\\"q\\"",""}', "{}"]),
        "decimals": one_of(["{1.50,NaN}"]),
        "host": one_of(["1.2.3.4", "10.0.0.0/8", "::1"]),
        "bits": one_of(["101"]),
    },
)
PAIRS = Table(
    "pairs",
    """CREATE TABLE pairs (
        amount int, part uuid, place text, at int, PRIMARY KEY (place, at, part))""",
    ["place", "at", "part"],
    {
        "place": one_of(["", 'a"b', "z\u00e9", "\\", "[1]"], null=False),
        "at": number(-3, 3),
        "part": one_of([f"00000000-0000-0000-0000-00000000000{n}" for n in range(3)], null=False),
        "amount": number(0, 1000),
    },
)
NOTES = Table(
    "notes",
    "CREATE TABLE notes (body text, title text PRIMARY KEY, detail jsonb)",
    ["title"],
    {
        # Long and incompressible enough to be stored out of line, so that an update of the
        # other columns leaves it unsent.
        "body": lambda rng: None if rng.random() < 0.1 else rng.randbytes(2500).hex(),
        "title": one_of([f"t{n}" for n in range(30)] + ["", "\u00fc"], null=False),
        "detail": one_of(JSONS),
    },
)
TABLES = [KINDS, PAIRS, NOTES]


def begun(database: Database) -> Oracle:
    """The oracle of the database, in which the tables are made."""
    with database.connect() as owner:
        for table in TABLES:
            owner.execute(table.ddl.encode())
    oracle = Oracle(database.dsn, f"oracle_{database.name}")
    for table in TABLES:
        oracle.start(table.name)
    return oracle


class Writer(threading.Thread):
    """One table's only writer: random transactions, each noted with the oracle, until stopped."""

    def __init__(self, dsn: str, table: Table, oracle: Oracle, seed: int, pause: float) -> None:
        super().__init__(name=f"writer-{table.name}")
        self._dsn = dsn
        self._table = table
        self._oracle = oracle
        self._random = random.Random(seed)
        self._pause = pause
        self._stop_asked = threading.Event()
        self.committed = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with psycopg.connect(self._dsn, options=SESSION) as connection:
                while not self._stop_asked.wait(self._pause * self._random.random()):
                    self._transaction(connection)
        except BaseException as failure:
            self.failure = failure
            raise

    def finish(self) -> None:
        """Stop after the transaction under way.

        :raises BaseException: what ended the writer early.
        """
        self._stop_asked.set()
        self.join(PATIENCE_S)
        if self.failure is not None:
            raise self.failure

    def _transaction(self, connection: Connection) -> None:
        for _ in range(self._random.choice([1, 1, 2, 5, 20])):
            self._statement(connection)
        if self._random.random() < 0.1:
            connection.rollback()
            return
        self._oracle.note(connection, self._table.name)
        connection.commit()
        self.committed += 1

    def _statement(self, connection: Connection) -> None:
        table, drawn = self._table, self._draw
        keys = " AND ".join(f"{name} = %s" for name in table.key_fields)
        chance = self._random.random()
        if chance < 0.5:
            names = list(table.columns)
            places = ", ".join(["%s"] * len(names))
            connection.execute(
                f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({places}) "
                f"ON CONFLICT DO NOTHING",
                [drawn(name) for name in names],
            )
        elif chance < 0.8:
            name = self._random.choice([n for n in table.columns if n not in table.key_fields])
            connection.execute(
                f"UPDATE {table.name} SET {name} = %s WHERE {keys}",
                [drawn(name), *map(drawn, table.key_fields)],
            )
        elif chance < 0.88:
            self._move_a_key(connection, keys)
        elif chance < 0.997:
            connection.execute(
                f"DELETE FROM {table.name} WHERE {keys}", [*map(drawn, table.key_fields)]
            )
        else:
            connection.execute(f"TRUNCATE {table.name}")

    def _move_a_key(self, connection: Connection, keys: str) -> None:
        table = self._table
        moved = [self._draw(name) for name in table.key_fields]
        taken = connection.execute(f"SELECT FROM {table.name} WHERE {keys}", moved).fetchone()
        if taken is None:
            settings = ", ".join(f"{name} = %s" for name in table.key_fields)
            connection.execute(
                f"UPDATE {table.name} SET {settings} WHERE {keys}",
                [*moved, *map(self._draw, table.key_fields)],
            )

    def _draw(self, name: str) -> str | None:
        return self._table.columns[name](self._random)
