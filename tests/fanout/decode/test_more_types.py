"""Types that are rarer, nested or an extension's: the streamed line is the copied one."""

import pytest

from tests.support.ingest import Start
from tests.support.postgres import Database, on_versions

RARE = {
    "path": "'((1,2),(3.5,-4e-20))'",
    "polygon": "'((0,0),(1,1),(0,1e15))'",
    "circle": "'<(1,2),3.3>'",
    "line": "'{1,-1,0.1}'",
    "lseg": "'[(0,0),(1,1)]'",
    "macaddr8": "'08:00:2b:01:02:03:04:05'",
    "tsquery": "'''fat'' & (''rat'' | ''c\"at'')'",
    "jsonpath": "'$.\"a b\"[*] ? (@ > 1)'",
    "xml": "'<a b=\"c\">&amp;\n</a>'",
    "pg_snapshot": "'10:20:10,14'",
    "txid_snapshot": "'10:20:10,14'",
    "xid8": "'18446744073709551615'",
    "xid": "'4294967295'",
    "tid": "'(7,8)'",
    "regclass": "'pg_catalog.pg_class'",
    "regtype": "'public.mood'",
    "aclitem": "'postgres=r/postgres'",
    "text[][][]": "ARRAY[[['a', NULL], ['\"', '\\']], [['{', '}'], [',', ' NULL']]]",
    "numrange": "'[1.10,2.00)'",
    "tsrange": "'(2024-01-01 00:00:00.5,infinity]'",
    "daterange": "'empty'",
    "nummultirange": "'{[1.10,2.00),[5,5]}'",
    "datemultirange[]": "ARRAY['{[2024-01-01,2024-02-01)}'::datemultirange, NULL]",
    "moods": '\'{so so,"he said \\"ok\\""}\'',
    "labelled": "ROW(ARRAY[ROW(1, 'so so')::pair, NULL], 2.5, '{\"[1,3)\"}')",
    "labelled[]": "ARRAY['(,1.0,)'::labelled, NULL]",
    "positive": "'7.10'",
    "positives": "'{1.50,NULL,2.00}'",
    "mood_range": '\'["he said ""ok""","so so"]\'',
    "money[]": "ARRAY['1234.5'::money, '-0.01'::money]",
    "interval[]": "ARRAY['1 year -3 days 00:00:00.000001'::interval]",
    "bit(3)[]": "'{101,010}'",
    '"char"[]': "ARRAY['a', '\"']::\"char\"[]",
    "name[]": "'{abc,\"d e\"}'",
    "oidvector[]": "ARRAY['1 2'::oidvector, NULL]",
    "uuid[]": "ARRAY[gen_random_uuid()]",
    "time[]": "'{10:00:00.5,24:00}'",
    "timestamp[]": "'{\"0044-03-15 10:00:00 BC\",infinity}'",
    "xml[]": "ARRAY['<a/>', '<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ä>1 &lt; 2</ä>']::xml[]",
    "line_of": "'(1,\"a b\")'",
}
_SETUP = (
    "CREATE TYPE mood AS ENUM ('he said \"ok\"', 'so so')",
    "CREATE DOMAIN moods AS mood[]",
    "CREATE DOMAIN positive AS numeric(8,2) CHECK (VALUE > 0)",
    "CREATE DOMAIN positives AS positive[]",
    "CREATE TYPE pair AS (number int, feeling mood)",
    "CREATE TYPE labelled AS (pairs pair[], price positive, spans int4range[])",
    "CREATE TYPE mood_range AS RANGE (subtype = mood)",
    "CREATE TABLE line_of (a int, b text)",
)


def _make(database: Database, types: dict[str, str]) -> str:
    """A table with a column of each type; returns the SELECT of one row's values."""
    columns = ", ".join(f"c{number} {name}" for number, name in enumerate(types))
    database.run(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    values = ", ".join(f"{value}::{name}" for name, value in types.items())
    return f"INSERT INTO t SELECT g, {values} FROM generate_series"


@on_versions(15, 18)
def test_rare_and_nested_types(database: Database, live: Start) -> None:
    database.run(*_SETUP)
    # The wheel's is built without libxml.
    types = {
        name: value for name, value in RARE.items() if _version(database) < 16 or "xml" not in name
    }
    insert = _make(database, types)
    database.run(f"{insert}(1, 2) g", "INSERT INTO t VALUES (3)")
    ingest = live("public.t")
    database.run(f"{insert}(4, 5) g", "INSERT INTO t VALUES (6)", "UPDATE t SET id = id + 10")
    ingest.assert_equal()


EXTENSIONS = {
    15: {
        "citext": "'Groß \"'",
        "citext[]": "'{A,b}'",
        "hstore": '\'a=>1, "b \\" c"=>NULL\'',
        "hstore[]": "ARRAY['a=>1'::hstore]",
        "ltree": "'Top.Science_1.x'",
        "ltree[]": "'{a.b,c}'",
        "lquery": "'Top.*{1,2}.a|b'",
        "cube": "'(1,2),(3,4.5)'",
        "int4_or_hstore": '\'(1,"""a""=>""2""")\'',
    },
    18: {
        "vector(3)": "'[1,2.5,-3e-10]'",
        "vector[]": "ARRAY['[1,2]'::vector]",
        "halfvec(2)": "'[0.5,2]'",
        "sparsevec(5)": "'{1:1.5,3:2}/5'",
        "bit(8)": "B'10101010'",
    },
}


@on_versions(15, 18)
def test_types_of_extensions(database: Database, live: Start) -> None:
    """hstore has a cast to json, which to_json would use; its line is its text all the same."""
    if _version(database) == 15:
        database.run(
            *(f"CREATE EXTENSION {name}" for name in ("citext", "hstore", "ltree", "cube")),
        )
        database.run("CREATE TYPE int4_or_hstore AS (n int, h hstore)")
    else:
        database.run("CREATE EXTENSION vector")
    insert = _make(database, EXTENSIONS[_version(database)])
    database.run(f"{insert}(1, 2) g")
    ingest = live("public.t")
    database.run(f"{insert}(3, 4) g", "UPDATE t SET id = id + 10 WHERE id < 3")
    ingest.assert_equal()


def _version(database: Database) -> int:
    with database.connect() as connection:
        return connection.info.server_version // 10000


@pytest.mark.parametrize("key", ["citext", "ltree", "hstore"])
@on_versions(15)
def test_keys_of_extensions_types(database: Database, live: Start, key: str) -> None:
    values = {
        "citext": "'Key' || g",
        "ltree": "('a.k' || g)::ltree",
        "hstore": "hstore('k', g::text)",
    }
    database.run(f"CREATE EXTENSION {key}", f"CREATE TABLE t (id {key} PRIMARY KEY, big text)")
    database.run("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    insert = f"INSERT INTO t SELECT {values[key]}, repeat(md5(g::text), 90)"
    database.run(f"{insert} FROM generate_series(1, 200) g")
    ingest = live("public.t", range_bytes=64 << 10)
    database.run(
        f"{insert} FROM generate_series(201, 210) g",
        "DELETE FROM t WHERE ctid IN (SELECT ctid FROM t LIMIT 20)",
        "UPDATE t SET big = 'x' WHERE ctid IN (SELECT ctid FROM t OFFSET 5 LIMIT 20)",
    )
    if key == "citext":
        # The same key to PostgreSQL, another text: known by its text, it moves.
        database.run("UPDATE t SET id = upper(id::text) WHERE id = 'key150'")
    ingest.assert_equal()


GENERATED = {
    15: ("", "twice int GENERATED ALWAYS AS (n * 2) STORED", False),
    18: (
        " WITH (publish_generated_columns = stored)",
        "twice int GENERATED ALWAYS AS (n * 2) STORED, thrice int GENERATED ALWAYS AS (n * 3)",
        True,
    ),
}


@on_versions(15, 18)
def test_generated_columns(database: Database, live: Start) -> None:
    """A line has those that are published; a virtual one never is."""
    parameters, generated, published = GENERATED[_version(database)]
    database.run(
        f"CREATE TABLE t (id int PRIMARY KEY, n int, {generated}, a text)",
        "INSERT INTO t (id, n) SELECT g, g FROM generate_series(1, 5) g",
        f"CREATE PUBLICATION pub_{database.name} FOR TABLE t{parameters}",
    )
    ingest = live("public.t", create_publication=False)
    database.run("INSERT INTO t (id, n) VALUES (6, 6)", "UPDATE t SET n = 10 WHERE id = 2")
    ingest.assert_equal()
    twice = b'"twice":20,' if published else b""
    assert ingest.state("public.t")[b"2"] == b'{"id":2,"n":10,' + twice + b'"a":null}'
