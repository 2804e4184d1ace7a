"""A table's owner runs no code as the role that copies, and the copy has the stream's values.

Functions of the owner stand wherever SQL could call them: casts to text and json, of arrays too,
a domain's CHECK, operators of an extension's type. Each one raises for any role but the owner.
"""

import pytest

from laredo_archive.maintain.compare_postgres import Database as Measuring
from laredo_fanout.pg_catalog import table_definitions
from laredo_fanout.postgres import key_comparison
from laredo_fanout.source_options import PublicationOptions, SourceTableOptions
from laredo_model import line
from laredo_model.checksum import StateChecksum
from tests.support.ingest import Start
from tests.support.postgres import Database, on_versions

_TYPES = {
    "mood": "CREATE TYPE mood AS ENUM ('so so', 'he said \"ok\"')",
    "pair": "CREATE TYPE pair AS (number int, feeling mood)",
    "moods": "CREATE TYPE moods AS RANGE (subtype = mood, multirange_type_name = many_moods)",
    "price": "CREATE DOMAIN price AS numeric(8,2)",
    "pairs": "CREATE DOMAIN pairs AS pair[]",
    "text_of": "CREATE DOMAIN text_of AS json",
    "oid_of": "CREATE DOMAIN oid_of AS oid",
    "moods_of": "CREATE DOMAIN moods_of AS mood[]",
}
_COLUMNS = {
    "mood": "'he said \"ok\"'",
    "mood[]": "ARRAY[['so so', NULL], ['he said \"ok\"', 'so so']]::mood[]",
    "pair": '\'(1,"he said ""ok""")\'',
    "pair[]": "ARRAY['(,)', NULL, '(2,so so)']::pair[]",
    "moods": '\'[so so,"he said ""ok"""]\'',
    "many_moods": "'{[so so,so so]}'",
    "moods[]": "ARRAY['empty'::moods]",
    "price[]": "'{1.50,NULL}'",
    "pairs": "ARRAY['(3,so so)']::pair[]",
    "text_of[]": "ARRAY['{\"a\":\n1}', NULL]::text_of[]",
    "oid_of[]": "'{1,4294967295}'",
    "moods_of[]": "'{\"{so so,NULL}\",NULL}'",
    "moods_of": "'{}'",
    "rows_of": "ROW(5, 'x')::rows_of",
    "rows_of[]": "ARRAY[ROW(5, NULL)::rows_of]",
}
_LIARS = ("mood", "mood[]", "pair", "pair[]", "moods", "many_moods", "moods[]", "price[]",
          "text_of[]", "oid_of[]", "moods_of[]", "rows_of", "rows_of[]")  # fmt: skip


def _liar(name: str, arguments: str, result: str) -> str:
    """A function of the owner's, which gives the owner away."""
    return (
        f"CREATE FUNCTION {name}({arguments}) RETURNS {result} LANGUAGE plpgsql IMMUTABLE AS $$"
        " BEGIN IF current_user NOT LIKE 'owner%' THEN RAISE 'ran as %', current_user; END IF;"
        " RETURN NULL; END $$"
    )


@pytest.fixture
def owned(database: Database) -> Database:
    """A database in which a role that is nobody else owns everything that is in the way."""
    role = f"owner_{database.name}"
    with database.connect() as admin:
        admin.execute(f"CREATE ROLE {role}".encode())
        admin.execute(f"GRANT CREATE ON SCHEMA public TO {role}".encode())
        admin.execute(f"SET ROLE {role}".encode())
        admin.execute("CREATE TABLE rows_of (a int, b text)")
        for statement in _TYPES.values():
            admin.execute(statement.encode())
        for number, name in enumerate(_LIARS):
            targets = ["text", "json", "varchar"]
            targets += ["text[]", "json[]", "int8[]"] if name.endswith("[]") else []
            for target in targets:
                function = f"lie_{number}_{target.replace('[]', '_many')}"
                admin.execute(_liar(function, name, target).encode())
                admin.execute(
                    f"CREATE CAST ({name} AS {target}) WITH FUNCTION {function}({name})"
                    f"{' AS IMPLICIT' if target == 'text' else ''}".encode()
                )
    return database


@on_versions(15, 18)
def test_copies_call_no_casts_of_others(owned: Database, live: Start) -> None:
    """Copied, streamed and measured are the same."""
    columns = ", ".join(f"c{number} {name}" for number, name in enumerate(_COLUMNS))
    values = ", ".join(_COLUMNS.values())
    nulls = ", ".join("NULL" for _ in _COLUMNS)
    owned.run(
        f"SET ROLE owner_{owned.name}",
        f"CREATE TABLE t (id int PRIMARY KEY, {columns})",
        f"INSERT INTO t VALUES (1, {values}), (2, {nulls})",
    )
    ingest = live("public.t")
    owned.run(f"SET ROLE owner_{owned.name}", f"INSERT INTO t VALUES (3, {values}), (4, {nulls})")
    ingest.catch_up()
    state = ingest.state("public.t")
    for copied, streamed in ((b"1", b"3"), (b"2", b"4")):
        for one, other in zip(
            list(line.items(state[copied]))[1:], list(line.items(state[streamed]))[1:], strict=True
        ):
            assert one == other
    assert b'"c1":[["so so",null],["he said \\"ok\\"","so so"]]' in state[b"1"]
    assert b'"c11":[["so so",null],null]' in state[b"1"]
    assert b'"c12":[],' in state[b"1"]
    checksum = StateChecksum()
    checksum.add(list(state.values()))
    with Measuring.connected(owned.dsn) as measuring:
        measured = measuring.measure(measuring.table("public.t", None))
    assert measured.checksum == checksum.hex()


_KEYS = {
    "checked": "g",
    "holder": "ROW(g)::holder",
    "checkeds": "ARRAY[g]::checked[]",
    "mood": "CASE g WHEN 1 THEN 'so so' WHEN 2 THEN 'he said \"ok\"' END::mood",
}


@on_versions(15, 18)
def test_keys_run_no_checks_of_others(owned: Database, live: Start) -> None:
    """Neither where a table is cut, nor where rows are read again by their keys."""
    rows = {key: 2 if key == "mood" else 300 for key in _KEYS}
    with owned.connect() as admin:
        admin.execute(f"SET ROLE owner_{owned.name}".encode())
        admin.execute(_liar("check_it", "int", "boolean").encode())
        admin.execute("CREATE DOMAIN checked AS int CHECK (check_it(VALUE))")
        admin.execute("CREATE DOMAIN checkeds AS checked[]")
        admin.execute("CREATE TYPE holder AS (n checked)")
        for key, value in _KEYS.items():
            admin.execute(
                f"CREATE TABLE t_{key} (id {key} PRIMARY KEY, n int, big text);"
                f" ALTER TABLE t_{key} ALTER big SET STORAGE EXTERNAL".encode()
            )
            admin.execute(
                f"INSERT INTO t_{key} SELECT {value}, g, repeat(md5(g::text), 90)"
                f" FROM generate_series(1, {rows[key]}) g".encode()
            )
        # A partition's check isn't computed either.
        admin.execute(
            "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id);"
            " CREATE TABLE leaf PARTITION OF t FOR VALUES FROM (0) TO (10000);"
            " ALTER TABLE leaf ADD CHECK (check_it(1));"
            " INSERT INTO t SELECT generate_series(1, 6000)"
        )
        admin.execute("ANALYZE")
    tables = {f"public.t_{key}": count for key, count in rows.items()} | {"public.t": 6000}
    ingest = live(*tables, range_bytes=64 << 10)
    ingest.catch_up()
    for name, count in tables.items():
        assert len(ingest.state(name)) == count
        assert ingest.record(name).rows == count


@on_versions(15)
def test_only_operators_of_the_types_operator_class_are_called(database: Database) -> None:
    """hstore has none of the usual names; whoever may make them in its schema does."""
    with database.connect() as admin:
        admin.execute("CREATE EXTENSION hstore")
        admin.execute("CREATE EXTENSION citext")
        admin.execute("CREATE TABLE t (h hstore PRIMARY KEY)")
        admin.execute("CREATE TABLE c (k citext PRIMARY KEY)")
        admin.execute(_liar("below", "hstore, hstore", "boolean").encode())
        for operator in ("<", "<=", ">"):
            admin.execute(
                f"CREATE OPERATOR public.{operator} (FUNCTION = below, LEFTARG = hstore,"
                " RIGHTARG = hstore)".encode()
            )
    options = [SourceTableOptions("public", "t"), SourceTableOptions("public", "c")]
    with database.connect() as connection:
        connection.execute("SET search_path = pg_catalog")
        tables = table_definitions.read_tables(connection, options, PublicationOptions("none"))
        assert not key_comparison.is_possible(connection, tables["public.t"].selected_key)
        assert key_comparison.is_possible(connection, tables["public.c"].selected_key)


def test_arrays_with_a_delimiter_of_their_own(database: Database, live: Start) -> None:
    """PostGIS' geometry has a colon; nothing else in a text[]'s text would tell its elements."""
    value = """'[0:1][2:3]={{"a,b":c}:{NULL:"d:\\"e"}}'::odd[]"""
    with database.connect() as admin:
        admin.execute("CREATE TYPE odd")
        for name, arguments, result in (("in", "cstring", "odd"), ("out", "odd", "cstring")):
            admin.execute(
                f"CREATE FUNCTION odd_{name}({arguments}) RETURNS {result} LANGUAGE internal"
                f" STRICT IMMUTABLE AS 'text{name}'".encode()
            )
        admin.execute(
            "CREATE TYPE odd (INPUT = odd_in, OUTPUT = odd_out, LIKE = text, DELIMITER = ':')"
        )
        admin.execute("CREATE TABLE t (id int PRIMARY KEY, one odd, many odd[])")
        admin.execute(f"INSERT INTO t VALUES (1, 'x:y', {value}), (2, NULL, '{{}}')".encode())
        admin.execute("INSERT INTO t (id) VALUES (3)")
    ingest = live("public.t")
    database.run("INSERT INTO t SELECT id + 10, one, many FROM t")
    ingest.catch_up()
    state = ingest.state("public.t")
    assert state[b"1"] == b'{"id":1,"one":"x:y","many":[["a,b","c"],[null,"d:\\"e"]]}'
    for copied in (b"1", b"2", b"3"):
        assert state[b"1" + copied] == state[copied].replace(b'"id":', b'"id":1')
