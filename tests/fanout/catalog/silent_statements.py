"""Every statement of PostgreSQL that can change rows or their text without a message in the stream,
undone again, and the cheap ones that look like them in the catalog.

``{t}`` is the case's table, ``{p}`` the publication, ``{o}`` a role that owns nothing else.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

PLAIN, ROOT, FULL, UNIQUE, INDEX, KEY = "plain", "root", "full", "unique", "index", "key"
NAMED, ALL_TABLES, SCHEMA = "by name", "all tables", "tables in schema"
WRITE = "UPDATE {t} SET a = 'w' WHERE id % 2 = 0"

_PARTITIONS = (
    "; CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (MINVALUE) TO (10)"
    "; CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (10) TO (MAXVALUE)"
)
_FORMS = {
    PLAIN: "CREATE TABLE {t} (id int PRIMARY KEY, {columns})",
    ROOT: "CREATE TABLE {t} (id int PRIMARY KEY, {columns}) PARTITION BY RANGE (id)" + _PARTITIONS,
    FULL: "CREATE TABLE {t} (id int PRIMARY KEY, {columns}); ALTER TABLE {t} REPLICA IDENTITY FULL",
    UNIQUE: "CREATE TABLE {t} (id int NOT NULL, {columns}); CREATE UNIQUE INDEX {t}_key ON {t} (id)"
    "; ALTER TABLE {t} REPLICA IDENTITY FULL",
    INDEX: "CREATE TABLE {t} (id int NOT NULL, {columns}); CREATE UNIQUE INDEX {t}_key ON {t} (id)"
    "; ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_key",
    KEY: "CREATE TABLE {t} (id int, {columns}, PRIMARY KEY (v, id))",
}
"""The kinds of tables; a key of the type that is altered is the last."""


@dataclass(frozen=True)
class Case:
    """Statements that leave a table's definition as it was."""

    name: str
    statements: tuple[str, ...]
    kinds: tuple[str, ...] = (PLAIN, ROOT, FULL)
    columns: str = "a text, b text, c text"
    values: str = "'a' || g, 'b' || g, 'c' || g"
    before: str = ""
    publications: tuple[str, ...] = (NAMED, ALL_TABLES, SCHEMA)
    together: bool = True
    """True if they can be one transaction."""
    cheap: bool = False
    """True if they must cost no copy."""
    since: int = 14

    def made(self, kind: str) -> str:
        """The statements that make the table, of 20 rows."""
        form = _FORMS[kind].replace("{columns}", self.columns)
        filled = f"INSERT INTO {{t}} SELECT g, {self.values} FROM generate_series(1, 20) g"
        return "; ".join(filter(None, (self.before, form, filled)))


def _columns() -> Iterator[Case]:
    alter = "ALTER TABLE {t} "
    yield Case("dropped, added", (alter + "DROP COLUMN c, ADD COLUMN c text", WRITE))
    yield Case(
        "dropped, added with a default",
        (alter + "DROP COLUMN c", alter + "ADD COLUMN c text DEFAULT 'new'", WRITE),
    )
    yield Case(
        "values shifted between columns",
        (
            alter + "DROP COLUMN a",
            alter + "RENAME COLUMN b TO a",
            alter + "RENAME COLUMN c TO b",
            alter + "ADD COLUMN c text",
            WRITE,
        ),
    )
    yield Case("dropped, added in silence", (alter + "DROP COLUMN c, ADD COLUMN c text",))
    yield Case("renamed and back", (alter + "RENAME a TO x", alter + "RENAME x TO a", WRITE))
    yield Case(
        "renamed, written and back",
        (alter + "RENAME a TO x", "UPDATE {t} SET x = 'w' WHERE id < 5", alter + "RENAME x TO a"),
    )
    yield Case(
        "another type and back",
        (
            alter + "ALTER c TYPE int USING length(c)",
            WRITE,
            alter + "ALTER c TYPE text USING c::text",
        ),
    )
    yield Case("rewritten", (alter + "ALTER c TYPE text USING c || '!'",))
    yield Case(
        "a type dropped with its column",
        ("DROP TYPE {t}_m CASCADE", "CREATE TYPE {t}_m AS ENUM ('ok')", alter + "ADD v {t}_m"),
        (PLAIN, ROOT),
        "a text, v {t}_m",
        "'a', 'ok'",
        "CREATE TYPE {t}_m AS ENUM ('ok')",
    )


def _keys() -> Iterator[Case]:
    alter = "ALTER TABLE {t} "
    shifted = "UPDATE {t} SET id = id + 1"
    yield Case(
        "primary key dropped, keys shifted",
        (alter + "DROP CONSTRAINT {t}_pkey", shifted, alter + "ADD PRIMARY KEY (id)"),
        (FULL,),
    )
    yield Case(
        "unique index dropped, keys shifted",
        ("DROP INDEX {t}_key", shifted, "CREATE UNIQUE INDEX {t}_key ON {t} (id)"),
        (UNIQUE,),
    )
    yield Case(
        "an equal key, and gone",
        (
            alter + "DROP CONSTRAINT {t}_pkey",
            "INSERT INTO {t} VALUES (1, 'equal')",
            alter + "REPLICA IDENTITY FULL",
            "DELETE FROM {t} WHERE a = 'equal'",
            alter + "ADD PRIMARY KEY (id), REPLICA IDENTITY DEFAULT",
        ),
        (PLAIN,),
    )
    yield Case(
        "an equal key of an index, and gone",
        (
            "DROP INDEX {t}_key",
            "INSERT INTO {t} VALUES (1, 'equal')",
            alter + "REPLICA IDENTITY FULL",
            "DELETE FROM {t} WHERE a = 'equal'",
            "CREATE UNIQUE INDEX {t}_key ON {t} (id)",
            alter + "REPLICA IDENTITY USING INDEX {t}_key",
        ),
        (INDEX,),
    )
    yield Case(
        "null keys",
        (
            alter + "ALTER id DROP NOT NULL",
            "INSERT INTO {t} VALUES (NULL, 'one'), (NULL, 'two')",
            "UPDATE {t} SET id = 30 WHERE a = 'one'",
            "UPDATE {t} SET id = 31 WHERE a = 'two'",
            alter + "ALTER id SET NOT NULL",
        ),
        (UNIQUE,),
    )
    yield Case(
        "another replica identity",
        (
            alter + "ADD CONSTRAINT {t}_b UNIQUE (b)",
            alter + "ALTER b SET NOT NULL",
            alter + "REPLICA IDENTITY USING INDEX {t}_b",
            "UPDATE {t} SET id = id + 100 WHERE id > 9",
            alter + "REPLICA IDENTITY DEFAULT",
        ),
        (PLAIN,),
    )
    yield Case(
        "another replica identity of a partition",
        (
            "ALTER TABLE {t}_2 ADD CONSTRAINT {t}_b UNIQUE (b), ALTER b SET NOT NULL",
            "ALTER TABLE {t}_2 REPLICA IDENTITY USING INDEX {t}_b",
            "UPDATE {t} SET id = id + 100 WHERE id > 9",
            "ALTER TABLE {t}_2 REPLICA IDENTITY DEFAULT",
        ),
        (ROOT,),
    )


_ENUM = "CREATE TYPE {t}_m AS ENUM ('sad', 'ok')"
_MOOD = "(ARRAY['sad', 'ok'])[1 + g % 2]::{t}_m"
_ENUMS = {
    "enum": ("", "{t}_m", _MOOD),
    "array": ("", "{t}_m[]", f"ARRAY[{_MOOD}]"),
    "domain": ("; CREATE DOMAIN {t}_d AS {t}_m", "{t}_d", _MOOD),
    "range": ("; CREATE TYPE {t}_r AS RANGE (subtype = {t}_m)", "{t}_r", f"{{t}}_r({_MOOD}, NULL)"),
    "composite": ("; CREATE TYPE {t}_c AS (x int, m {t}_m)", "{t}_c", f"ROW(g, {_MOOD})::{{t}}_c"),
    "domain over an array of composites": (
        "; CREATE TYPE {t}_c AS (x int, m {t}_m); CREATE DOMAIN {t}_d AS {t}_c[]",
        "{t}_d",
        f"ARRAY[ROW(g, {_MOOD})::{{t}}_c]",
    ),
}
_COMPOSITES = {
    "composite": ("CREATE TYPE {t}_c AS (x int, y text)", "{t}_c", "{}"),
    "row of a table": ("CREATE TABLE {t}_c (x int, y text)", "{t}_c", "{}"),
    "array": ("CREATE TYPE {t}_c AS (x int, y text)", "{t}_c[]", "ARRAY[{}]"),
    "domain": ("CREATE TYPE {t}_c AS (x int, y text); CREATE DOMAIN {t}_d AS {t}_c", "{t}_d", "{}"),
    "range": (
        "CREATE TYPE {t}_c AS (x int, y text); CREATE TYPE {t}_r AS RANGE (subtype = {t}_c)",
        "{t}_r",
        "{{t}}_r({}, NULL)",
    ),
}


def _types() -> Iterator[Case]:
    moved = "INSERT INTO {t} SELECT id + 100, a, v FROM {t} WHERE id < 5"
    for form, (more, type_, value) in _ENUMS.items():
        case = Case(
            f"label renamed, {form}",
            (
                "ALTER TYPE {t}_m RENAME VALUE 'sad' TO 'blue'",
                WRITE,
                moved,
                "DELETE FROM {t} WHERE id = 3",
                "ALTER TYPE {t}_m RENAME VALUE 'blue' TO 'sad'",
            ),
            (PLAIN, ROOT, FULL, KEY) if form == "enum" else (PLAIN, KEY),
            f"a text, v {type_}",
            f"'a', {value}",
            _ENUM + more,
        )
        yield case
        if form in ("enum", "domain over an array of composites"):
            rename = case.statements[:1]
            yield replace(case, name=f"label renamed in silence, {form}", statements=rename)
    for form, (before, type_, value) in _COMPOSITES.items():
        longer = value.format("ROW(id, 'y', 7)::{t}_c")
        altered, part = ("TABLE", "COLUMN") if "TABLE" in before else ("TYPE", "ATTRIBUTE")
        case = Case(
            f"attribute added and dropped, {form}",
            (
                f"ALTER {altered} {{t}}_c ADD {part} z int",
                f"UPDATE {{t}} SET v = {longer} WHERE id < 10",
                moved,
                f"ALTER {altered} {{t}}_c DROP {part} z",
            ),
            (PLAIN, ROOT, FULL, KEY) if form == "composite" else (PLAIN, KEY),
            f"a text, v {type_}",
            "'a', " + value.format("ROW(g, 'y')::{t}_c"),
            before,
        )
        yield case
        if form in ("composite", "row of a table"):
            names = (f"ALTER {altered} {{t}}_c ADD {part} z int", WRITE)
            yield replace(case, name=f"attribute added, {form}", statements=names)
            replaced = tuple(
                f"ALTER {altered} {{t}}_c {each}"
                for each in (f"DROP {part} y", f"ADD {part} y text")
            )
            yield replace(case, name=f"attribute replaced, {form}", statements=replaced)


def _storage() -> Iterator[Case]:
    yield Case(
        "unlogged, written, logged",
        ("ALTER TABLE {t} SET UNLOGGED", WRITE, "ALTER TABLE {t} SET LOGGED"),
        (PLAIN, FULL),
        publications=(ALL_TABLES, SCHEMA),
    )
    yield Case(
        "partition unlogged, written, logged",
        ("ALTER TABLE {t}_1 SET UNLOGGED", WRITE, "ALTER TABLE {t}_1 SET LOGGED"),
        (ROOT,),
    )
    yield Case("partition truncated", ("TRUNCATE {t}_1", WRITE), (ROOT,))
    yield Case("truncated", ("TRUNCATE {t}", "INSERT INTO {t} VALUES (1, 'after')"))


def _membership() -> Iterator[Case]:
    out = "ALTER PUBLICATION {p} DROP TABLE {t}"

    def again(how: str = "") -> str:
        """Put it in again, unless the server was faster."""
        return (
            f"DO $$ BEGIN ALTER PUBLICATION {{p}} ADD TABLE {{t}} {how};"
            " EXCEPTION WHEN duplicate_object THEN NULL; END $$"
        )

    yield Case("out of the publication", (out, WRITE, again()), publications=(NAMED,))
    for how in ("(id, a)", "WHERE (id > 100)"):
        yield Case(
            f"published as {how}",
            (out, again(how), "UPDATE {t} SET b = 'w'", out, again()),
            (PLAIN,),
            publications=(NAMED,),
            since=15,
        )
    yield Case(
        "renamed, written and back",
        (
            "ALTER TABLE {t} RENAME TO {t}_x",
            WRITE.replace("{t}", "{t}_x"),
            "ALTER TABLE {t}_x RENAME TO {t}",
        ),
    )
    yield Case(
        "in another schema and back",
        (
            "ALTER TABLE {t} SET SCHEMA elsewhere",
            WRITE.replace("{t}", "elsewhere.{t}"),
            "ALTER TABLE elsewhere.{t} SET SCHEMA public",
        ),
    )
    yield Case(
        "in the place of another",
        (
            "ALTER TABLE {t} RENAME TO {t}_x",
            "CREATE TABLE {t} (id int PRIMARY KEY, a text, b text, c text)",
            "INSERT INTO {t} VALUES (1, 'of another')",
            "DROP TABLE {t}",
            "ALTER TABLE {t}_x RENAME TO {t}",
            WRITE,
        ),
        (PLAIN,),
    )


def _cheap() -> Iterator[Case]:
    for name, statement in {
        "GRANT": "GRANT SELECT ON {t} TO PUBLIC",
        "GRANT on columns": "GRANT SELECT (a), UPDATE (b) ON {t} TO PUBLIC",
        "OWNER TO": "ALTER TABLE {t} OWNER TO {o}",
        "SET STATISTICS": "ALTER TABLE {t} ALTER a SET STATISTICS 500",
        "SET STORAGE": "ALTER TABLE {t} ALTER a SET STORAGE EXTERNAL",
        "SET DEFAULT, NOT NULL": "ALTER TABLE {t} ALTER a SET DEFAULT '', ALTER id SET NOT NULL",
        "CREATE INDEX": "CREATE UNIQUE INDEX ON {t} (id, a)",
        "RENAME CONSTRAINT": "ALTER TABLE {t} RENAME CONSTRAINT {t}_pkey TO {t}_key",
        "CHECK, TRIGGER": "ALTER TABLE {t} ADD CHECK (id < 1000), DISABLE TRIGGER ALL",
        "POLICY": "CREATE POLICY {t}_all ON {t}; ALTER TABLE {t} ENABLE ROW LEVEL SECURITY",
        "COMMENT": "COMMENT ON TABLE {t} IS 'a table'",
        "FULL": "ALTER TABLE {t} REPLICA IDENTITY FULL",
    }.items():
        statements = (statement, WRITE)
        yield Case(name, statements, (PLAIN, ROOT) if name != "FULL" else (PLAIN,), cheap=True)
    for name, statement in {
        "VACUUM FULL": "VACUUM FULL {t}",
        "CLUSTER": "CLUSTER {t} USING {t}_pkey",
        "REINDEX": "REINDEX TABLE {t}",
        "REINDEX CONCURRENTLY": "REINDEX INDEX CONCURRENTLY {t}_pkey",
        "TRUNCATE": "TRUNCATE {t}",
    }.items():
        # Elsewhere a new file may be that of SET UNLOGGED, some writes, SET LOGGED.
        files = name in ("VACUUM FULL", "CLUSTER", "TRUNCATE")
        publications = (NAMED,) if files else (NAMED, ALL_TABLES, SCHEMA)
        yield Case(
            name,
            (statement, WRITE),
            (PLAIN, FULL),
            publications=publications,
            together=False,
            cheap=True,
        )
    yield Case(
        "of its types",
        (
            "ALTER TYPE {t}_m ADD VALUE 'splendid' BEFORE 'ok'",
            "ALTER TYPE {t}_m RENAME TO {t}_n",
            "GRANT USAGE ON TYPE {t}_n TO PUBLIC",
            "ALTER TYPE {t}_n OWNER TO {o}",
            "COMMENT ON TYPE {t}_c IS 'a type'",
            WRITE,
        ),
        (PLAIN, ROOT, KEY),
        "a text, v {t}_c",
        f"'a', ROW(g, {_MOOD})::{{t}}_c",
        _ENUM + "; CREATE TYPE {t}_c AS (x int, m {t}_m)",
        cheap=True,
    )


CASES = (*_columns(), *_keys(), *_types(), *_storage(), *_membership(), *_cheap())
