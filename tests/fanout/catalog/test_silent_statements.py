"""Silent DDL is repaired before a position is verified; harmless statements cost no copy."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product, starmap
from typing import NamedTuple

import pytest

from laredo_fanout.pg_catalog import publication
from laredo_fanout.source_options import PublicationOptions
from tests.fanout.catalog.silent_statements import ALL_TABLES, CASES, NAMED, SCHEMA, Case
from tests.support import drawn
from tests.support.ingest import RunningIngest, Start
from tests.support.postgres import VERSION, Database


class Run(NamedTuple):
    """Conditions of a run: published tables, transactions, restarts."""

    published: str
    together: bool
    """True if those of a case are one transaction."""
    stopped: bool
    every_kind: bool = True
    """True if each case has a table of each kind, and not only of one."""


RUNS = [
    Run(SCHEMA, together=True, stopped=False, every_kind=False),
    Run(NAMED, together=False, stopped=True, every_kind=False),
    *starmap(Run, product((SCHEMA, NAMED, ALL_TABLES), (True, False), (False, True))),
]
_CHOSEN = {NAMED: "", ALL_TABLES: "FOR ALL TABLES", SCHEMA: "FOR TABLES IN SCHEMA public"}


class Scene:
    """A table for each case and kind, all followed by one server."""

    def __init__(self, database: Database, ingesting: Start, run: Run, owner: str) -> None:
        self._database = database
        self._owner = owner
        self.tables: dict[str, tuple[Case, str]] = {}
        self._last: dict[str, int] = {}
        cases = [
            each for each in CASES if run.published in each.publications and each.since <= VERSION
        ]
        for number, case in enumerate(cases):
            one = case.kinds[number % len(case.kinds)]
            for kind in case.kinds if run.every_kind else (one,):
                self.tables[f"t{len(self.tables)}"] = case, kind
        options = PublicationOptions(f"pub_{database.name}")
        self._publication = options.name
        with database.connect() as connection:
            connection.execute("CREATE SCHEMA elsewhere")
            for name, (case, kind) in self.tables.items():
                connection.execute(self._of(name, case.made(kind)))
            connection.execute(
                f"CREATE PUBLICATION {options.name} {_CHOSEN[run.published]}"
                f" WITH {publication.parameters(options)}".encode()
            )
        self.ingest = ingesting(*(f"public.{name}" for name in self.tables), heartbeat_interval=0.2)
        self.ingest.wait_live()
        self.first = {name: self.record(name).id for name in self.tables}
        self._verified: dict[int, int] = {}
        self.ingest.on_commit = self._note

    def _of(self, name: str, statement: str) -> bytes:
        names = {"{t}": name, "{p}": self._publication, "{o}": self._owner}
        for placeholder, value in names.items():
            statement = statement.replace(placeholder, value)
        return statement.encode()

    def record(self, name: str):  # type: ignore[no-untyped-def]
        return self.ingest.record(f"public.{name}")

    def _note(self, _: object) -> None:
        """Keep the last position at which an artifact of each incarnation could have ended.

        A check verifies ahead of the stream. What the stream itself shows before that position
        closes the incarnation in time.
        """
        store = self.ingest.store
        for record in store.tables.values():
            if record.live:
                self._verified[record.id] = min(record.verified, store.position)

    def run(self, *, together: bool) -> None:
        """Run the statements of each case, in one transaction or in several."""
        with self._database.connect() as connection:
            for name, (case, _) in self.tables.items():
                if together and case.together:
                    with connection.transaction():
                        for each in case.statements:
                            connection.execute(self._of(name, each))
                else:
                    for each in case.statements:
                        connection.execute(self._of(name, each))
                self._last[name] = self._database.position()

    def failures(self) -> Iterator[str]:
        """Say of each table what is wrong with it, once all of them are verified."""
        for name, last in self._last.items():
            self.ingest.wait_until(
                lambda name=name, last=last: (
                    self.ingest.is_live(f"public.{name}") and self.record(name).verified >= last
                ),
                f"{name}, {self.tables[name]}, is verified",
            )
        self.ingest.catch_up()
        truth = self.ingest.truths()
        for name, (case, kind) in self.tables.items():
            what = f"{name}: {case.name}, {kind}"
            rows = self.ingest.state(f"public.{name}")
            differing = rows.items() ^ truth[f"public.{name}"].items()
            if differing:
                yield f"{what}: {len(differing)} rows differ, such as {sorted(differing)[:4]}"
            copied = self.record(name).id != self.first[name]
            if copied and self._verified.get(self.first[name], 0) >= self._last[name]:
                yield f"{what}: verified before it was copied again"
            if copied and case.cheap:
                yield f"{what}: copied again"


@contextmanager
def role(database: Database) -> Iterator[str]:
    """A role that owns nothing, and nothing again in the end."""
    name = f"owner_{database.name}"
    with database.connect() as connection:
        connection.execute(f"CREATE ROLE {name} SUPERUSER".encode())
        try:
            yield name
        finally:
            connection.execute(f"REASSIGN OWNED BY {name} TO CURRENT_USER".encode())
            connection.execute(f"DROP ROLE {name}".encode())


@pytest.mark.parametrize("number", drawn.first(1, range(len(RUNS))))
def test_statements_that_change_rows_in_silence(
    database: Database, ingesting: Start, number: int
) -> None:
    how = RUNS[number]
    if how.published == SCHEMA and VERSION < 15:
        pytest.skip("schemas are published since version 15")
    with role(database) as owner:
        scene = Scene(database, ingesting, how, owner)
        if how.stopped:
            scene.ingest.stop()
        scene.run(together=how.together)
        if how.stopped:
            scene.ingest.start()
        failures = list(scene.failures())
        assert not failures, "\n".join(failures)


_WHOLE = "publish = 'insert, update, delete, truncate'"
_UNSEEN = "UPDATE t SET a = a || 'unseen'; UPDATE r SET a = a || 'unseen'"
OF_PUBLICATION = {
    "narrowed": (
        NAMED,
        (
            "ALTER PUBLICATION {p} SET (publish = 'insert')",
            f"ALTER PUBLICATION {{p}} SET ({_WHOLE})",
        ),
    ),
    "its schema taken out": (
        SCHEMA,
        (
            "ALTER PUBLICATION {p} DROP TABLES IN SCHEMA public",
            "ALTER PUBLICATION {p} ADD TABLES IN SCHEMA public",
        ),
    ),
    "another list": (
        NAMED,
        (
            "CREATE TABLE other (id int PRIMARY KEY); ALTER PUBLICATION {p} SET TABLE other",
            "ALTER PUBLICATION {p} SET TABLE t, r",
        ),
    ),
    "not by the root": (
        ALL_TABLES,
        (
            "ALTER PUBLICATION {p} SET (publish_via_partition_root = false)",
            "ALTER PUBLICATION {p} SET (publish_via_partition_root = true)",
        ),
    ),
    "made again": (
        ALL_TABLES,
        (
            "DROP PUBLICATION {p}",
            f"CREATE PUBLICATION {{p}} FOR ALL TABLES WITH ({_WHOLE},"
            " publish_via_partition_root = true)",
        ),
    ),
    "narrowed, and owned by another": (
        NAMED,
        (
            "ALTER PUBLICATION {p} SET (publish = 'insert')",
            f"ALTER PUBLICATION {{p}} SET ({_WHOLE}); ALTER PUBLICATION {{p}} OWNER TO {{o}}",
        ),
    ),
}


@pytest.mark.parametrize("stopped", drawn.first(1, (False, True)))
@pytest.mark.parametrize("published", _CHOSEN)
def test_a_publication_that_went_and_came_back(
    database: Database, ingesting: Start, published: str, stopped: bool
) -> None:
    """In one transaction, so that no check comes between."""
    with role(database) as owner:
        ingest = _published(database, ingesting, published)
        for chosen, (statement, undone) in OF_PUBLICATION.values():
            if chosen != published:
                continue
            before = [ingest.record(name) for name in ("public.t", "public.r")]
            if stopped:
                ingest.stop()
            _run(database, ingest, owner, f"BEGIN; {statement}; {_UNSEEN}; {undone}; COMMIT")
            if stopped:
                ingest.start()
            for former in before:
                ingest.wait_copied_again(former)
            ingest.assert_equal()


def test_a_partition_without_the_key_beside_a_column_list(database: Database, live: Start) -> None:
    """Its announcement has the columns of the root's numbers, which aren't those of its key."""
    options = PublicationOptions(f"pub_{database.name}")
    with database.connect() as connection:
        for statement in (
            "CREATE TABLE r (id int PRIMARY KEY, b text NOT NULL, a text) PARTITION BY RANGE (id)",
            "CREATE TABLE r_1 (gone int, a text, b text NOT NULL UNIQUE, id int NOT NULL)",
            "ALTER TABLE r_1 DROP COLUMN gone",
            "ALTER TABLE r ATTACH PARTITION r_1 DEFAULT",
            "INSERT INTO r SELECT g, 'b' || g, 'a' FROM generate_series(1, 20) g",
            f"CREATE PUBLICATION {options.name} FOR TABLE r (id, b)"
            f" WITH {publication.parameters(options)}",
        ):
            connection.execute(statement.encode())
        ingest = live("public.r", heartbeat_interval=0.2)
        before = ingest.record("public.r")
        connection.execute("UPDATE r SET id = id + 100 WHERE id < 3")
        ingest.assert_equal()
        assert ingest.record("public.r").id == before.id
        connection.execute(
            "BEGIN; ALTER TABLE r_1 REPLICA IDENTITY USING INDEX r_1_b_key;"
            " UPDATE r SET id = id + 100 WHERE id < 9;"
            " ALTER TABLE r_1 REPLICA IDENTITY DEFAULT; COMMIT"
        )
    ingest.wait_copied_again(before)
    ingest.assert_equal()


def test_another_owner_of_the_publication_costs_no_copy(
    database: Database, ingesting: Start
) -> None:
    with role(database) as owner:
        ingest = _published(database, ingesting, NAMED)
        for statement in (
            "ALTER PUBLICATION {p} OWNER TO {o}",
            "ALTER PUBLICATION {p} OWNER TO CURRENT_USER",
        ):
            _run(database, ingest, owner, statement + "; UPDATE t SET a = 'seen'")
            _wait_verified(database, ingest)
        assert ingest.status.recopies == 0
        ingest.assert_equal()


def _published(database: Database, ingesting: Start, published: str) -> RunningIngest:
    options = PublicationOptions(f"pub_{database.name}")
    columns = "(id int PRIMARY KEY, m mood, a text)"
    with database.connect() as connection:
        for statement in (
            "CREATE TYPE mood AS ENUM ('sad', 'ok')",
            f"CREATE TABLE t {columns}",
            f"CREATE TABLE r {columns} PARTITION BY RANGE (id)",
            "CREATE TABLE r_1 PARTITION OF r DEFAULT",
            "INSERT INTO t SELECT g, 'ok', 'a' FROM generate_series(1, 20) g",
            "INSERT INTO r SELECT g, 'ok', 'a' FROM generate_series(1, 20) g",
            f"CREATE PUBLICATION {options.name} {_CHOSEN[published]}"
            f" WITH {publication.parameters(options)}",
        ):
            connection.execute(statement.encode())
    ingest = ingesting("public.t", "public.r", heartbeat_interval=0.2)
    ingest.wait_live()
    return ingest


def _run(database: Database, ingest: RunningIngest, owner: str, statement: str) -> None:
    statement = statement.replace("{p}", ingest.options.publication.name).replace("{o}", owner)
    database.run(statement)


def _wait_verified(database: Database, ingest: RunningIngest) -> None:
    position = database.position()
    for name in ("public.t", "public.r"):
        ingest.wait_until(
            lambda name=name: ingest.is_live(name) and ingest.record(name).verified >= position,
            f"{name} is verified",
        )
