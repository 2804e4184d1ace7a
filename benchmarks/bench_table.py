"""The table that everything is measured on: ten columns, about 280 bytes of JSON a row."""

import psycopg

NAME = "bench"
QUALIFIED = f"public.{NAME}"

_CREATE = f"""
CREATE TABLE {NAME} (
    id bigint PRIMARY KEY, n int NOT NULL, name text, note text, price numeric(12,2),
    ratio float8, active bool, created timestamptz, updated timestamptz, doc jsonb)
"""

_FILL = f"""
INSERT INTO {NAME}
SELECT i, i %% 1000, 'customer ' || i, 'note ' || md5(i::text) || ' of row', (i %% 100000) / 100.0,
       i / 7.0, i %% 2 = 0, timestamptz '2024-01-01' + i * interval '1 second',
       timestamptz '2025-01-01' + i * interval '1 second',
       jsonb_build_object('city', 'city ' || i %% 500, 'tags', jsonb_build_array('a', i %% 10))
FROM generate_series(%s::bigint, %s) i
"""


def create(database: "psycopg.Connection[tuple[object, ...]]", rows: int) -> float:
    """Make and fill it; gives the average length of a row's JSON in bytes."""
    database.execute(_CREATE)
    insert(database, 1, rows)
    database.execute(f"VACUUM ANALYZE {NAME}")
    database.execute("CHECKPOINT")
    found = database.execute(
        f"SELECT avg(octet_length(row_to_json(b)::text)) FROM (SELECT * FROM {NAME} LIMIT 10000) b"
    ).fetchone()
    assert found is not None
    return float(str(found[0]))


def insert(database: "psycopg.Connection[tuple[object, ...]]", first: int, last: int) -> None:
    """Rows with these keys, in one statement."""
    database.execute(_FILL, (first, last))


def delete(database: "psycopg.Connection[tuple[object, ...]]", first: int, last: int) -> None:
    """Delete the rows with keys from ``first`` to ``last``."""
    database.execute(f"DELETE FROM {NAME} WHERE id BETWEEN %s AND %s", (first, last))


def update_in_order(
    database: "psycopg.Connection[tuple[object, ...]]",
    updates: int,
    rows: int,
    size: int,
    *,
    start: int = 0,
) -> None:
    """``updates`` updates in transactions of ``size``, keys in order, after the first ``start``."""
    for each in range(start, start + updates, size):
        first = each % rows + 1
        database.execute(
            f"UPDATE {NAME} SET n = n + 1, updated = now() WHERE id BETWEEN %s AND %s",
            (first, first + size - 1),
        )


def update_at_random(
    database: "psycopg.Connection[tuple[object, ...]]",
    updates: int,
    rows: int,
    size: int,
    *,
    start: int = 0,
) -> None:
    """Update rows with shuffled keys; none comes again before all have come."""
    database.execute("SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_sort = off")
    database.execute("SELECT setseed(0.42)")
    database.execute(
        "CREATE TEMP TABLE shuffled AS SELECT row_number() OVER () AS place, k FROM "
        "(SELECT k FROM generate_series(1, %s) k ORDER BY random()) s",
        (rows,),
    )
    database.execute("CREATE INDEX ON shuffled (place)")
    database.execute("ANALYZE shuffled")
    for each in range(start, start + updates, size):
        first = each % rows
        database.execute(
            f"UPDATE {NAME} SET n = n + 1, updated = now() FROM shuffled "
            f"WHERE place > %s AND place <= %s AND {NAME}.id = k",
            (first, first + size),
        )
    database.execute("DROP TABLE shuffled")
    database.execute("RESET enable_hashjoin; RESET enable_mergejoin; RESET enable_sort")
