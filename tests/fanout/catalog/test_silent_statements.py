"""What statements do to rows without a message in the stream is made good before it is verified;
what they don't do costs no copy.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product

import pytest

from laredo_fanout.catalog import publication
from laredo_fanout.source_options import PublicationOptions
from tests.fanout.catalog.silent_statements import ALL_TABLES, CASES, NAMED, SCHEMA, Case
from tests.support import drawn
from tests.support.ingest import RunningIngest
from tests.support.postgres import VERSION, Database

Start = Callable[..., RunningIngest]

RUNS = [
    (together, stopped, published)
    for published, together, stopped in product(
        (SCHEMA, NAMED, ALL_TABLES), (True, False), (False, True)
    )
    if published != SCHEMA or VERSION >= 15
]
_CHOSEN = {NAMED: "", ALL_TABLES: "FOR ALL TABLES", SCHEMA: "FOR TABLES IN SCHEMA public"}


class Scene:
    """A table for each case and kind, all followed by one server."""

    def __init__(self, database: Database, ingesting: Start, published: str, owner: str) -> None:
        self._database = database
        self._owner = owner
        self.tables: dict[str, tuple[Case, str]] = {}
        self._last: dict[str, int] = {}
        cases = [each for each in CASES if published in each.publications and each.since <= VERSION]
        for case in cases:
            for kind in case.kinds:
                self.tables[f"t{len(self.tables)}"] = case, kind
        options = PublicationOptions(f"pub_{database.name}")
        self._publication = options.name
        with database.connect() as connection:
            connection.execute("CREATE SCHEMA elsewhere")
            for name, (case, kind) in self.tables.items():
                connection.execute(self._of(name, case.made(kind)))
            connection.execute(
                f"CREATE PUBLICATION {options.name} {_CHOSEN[published]}"
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
        record = self.ingest.record(f"public.{name}")
        assert record is not None
        return record

    def _note(self, _: object) -> None:
        for record in self.ingest.store.tables.values():
            self._verified[record.id] = record.verified

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
                row = connection.execute(
                    "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
                ).fetchone()
                assert row is not None
                self._last[name] = int(str(row[0]))

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
            if copied and self._verified[self.first[name]] >= self._last[name]:
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


@pytest.mark.parametrize(("together", "stopped", "published"), drawn.first(2, RUNS))
def test_statements_that_change_rows_in_silence(
    database: Database, ingesting: Start, together: bool, stopped: bool, published: str
) -> None:
    with role(database) as owner:
        scene = Scene(database, ingesting, published, owner)
        if stopped:
            scene.ingest.stop()
        scene.run(together=together)
        if stopped:
            scene.ingest.start()
        failures = list(scene.failures())
        assert not failures, "\n".join(failures)
