"""Application of the demo: two tables, some hundred transactions a second."""

import random
import threading
import time

import psycopg

TABLES = ("config_document", "orders")
DDL = """
CREATE TABLE config_document (
    instance_id text, key text, tenant text NOT NULL, version integer NOT NULL,
    body jsonb NOT NULL, updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (instance_id, key));
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer text NOT NULL, amount numeric(12,2) NOT NULL, rate float8,
    paid boolean NOT NULL DEFAULT false, items text[], placed_at timestamptz DEFAULT now());
"""
ROLE = (
    "CREATE ROLE laredo LOGIN REPLICATION",
    "GRANT SELECT ON config_document, orders TO laredo",
    "CREATE PUBLICATION laredo FOR TABLE ONLY config_document, ONLY orders"
    " WITH (publish_via_partition_root = true)",
)
"""Rights of laredo-fanout's role, as its check prints them for a superuser."""
FILL = (
    """
    INSERT INTO config_document
    SELECT 'inst_' || mod(n, 500), 'rulesets/' || n, 'tenant ' || mod(n, 7), 1,
           jsonb_build_object('limit', n, 'label', 'café ' || n, 'nested', '[1, null]'::jsonb)
    FROM generate_series(1, %s) n""",
    """
    INSERT INTO orders
    SELECT n, 'customer ' || mod(n, 997), n * 1.01, random(), false, ARRAY['item ' || n, NULL]
    FROM generate_series(1, %s) n""",
)


def create(dsn: str, rows: int) -> None:
    """The tables, with ``rows`` rows each."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(DDL)
        for statement in FILL:
            connection.execute(statement.encode(), (rows,))
        connection.execute("ANALYZE")


class Application(threading.Thread):
    """Changes one table until stopped; counts what it committed."""

    def __init__(self, dsn: str, table: str, rows: int, seed: int) -> None:
        super().__init__(daemon=True, name=f"application-{table}")
        self.transactions = 0
        self.changes = 0
        self.failure: Exception | None = None
        self._dsn = dsn
        self._table = table
        self._rows = rows
        self._random = random.Random(seed)
        self._next = rows + 1
        self._stopping = threading.Event()
        self._truncate = threading.Event()

    def truncate(self) -> None:
        """Empty the table in the next transaction."""
        self._truncate.set()

    def stop(self) -> None:
        """Commit no more; returns when the last transaction has ended.

        :raises Exception: what the database refused, if it did.
        """
        self._stopping.set()
        if self.ident is not None:
            self.join()
        if self.failure is not None:
            raise self.failure

    def run(self) -> None:
        try:
            with psycopg.connect(self._dsn) as connection:
                while not self._stopping.is_set():
                    with connection.transaction(), connection.cursor() as cursor:
                        changed = self._transaction(cursor)
                    self.transactions += 1
                    self.changes += changed
                    time.sleep(0.004)  # an application's pace
        except psycopg.Error as failure:
            self.failure = failure

    def _transaction(self, cursor: "psycopg.Cursor[tuple[object, ...]]") -> int:
        if self._truncate.is_set():
            self._truncate.clear()
            cursor.execute(f"TRUNCATE {self._table}".encode())
            return 1
        return sum(self._change(cursor) for _ in range(self._random.randrange(1, 8)))

    def _change(self, cursor: "psycopg.Cursor[tuple[object, ...]]") -> int:
        kind, number = self._random.random(), self._random.randrange(1, self._next)
        documents = self._table == "config_document"
        if kind < 0.35:
            self._next += 1
            self._insert(cursor, self._next, documents=documents)
        elif kind < 0.85 and documents:
            cursor.execute(
                "UPDATE config_document SET version = version + 1, updated_at = now(),"
                " body = jsonb_set(body, '{limit}', to_jsonb(%s::int))"
                " WHERE instance_id = %s AND key = %s",
                (number, f"inst_{number % 500}", f"rulesets/{number}"),
            )
        elif kind < 0.85:
            cursor.execute(
                "UPDATE orders SET amount = amount + 0.01, rate = rate * 1.7, paid = NOT paid"
                " WHERE id = %s",
                (number,),
            )
        elif documents:
            cursor.execute(
                "DELETE FROM config_document WHERE instance_id = %s AND key = %s",
                (f"inst_{number % 500}", f"rulesets/{number}"),
            )
        else:
            cursor.execute("DELETE FROM orders WHERE id = %s", (number,))
        return cursor.rowcount

    @staticmethod
    def _insert(
        cursor: "psycopg.Cursor[tuple[object, ...]]", number: int, *, documents: bool
    ) -> None:
        if documents:
            cursor.execute(
                "INSERT INTO config_document (instance_id, key, tenant, version, body)"
                " VALUES (%s, %s, 'tenant new', 1, '{\"new\": true}')",
                (f"inst_{number % 500}", f"rulesets/{number}"),
            )
        else:
            cursor.execute(
                "INSERT INTO orders (id, customer, amount, rate, items)"
                " VALUES (%s, 'new', %s, 'NaN', '{}')",
                (number, number),
            )
