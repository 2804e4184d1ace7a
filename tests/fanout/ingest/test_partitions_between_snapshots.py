"""Partitions that come, are changed and go between two looks at the catalog, however the stream's
changes come: at once, in parts, from a backlog, during a copy or a repair, and with kills.

Each case has a root, and where it says so a followed table, of its own, so that all run at once.
"""

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from laredo_fanout.source_options import CopyOptions
from tests.fanout.ingest.partition_cases import CASES, FOLLOWED, REPAIRED, FollowedCase
from tests.support.drawn import first, thorough
from tests.support.ingest import Gate, Start
from tests.support.postgres import Database, on_versions
from tests.support.server.behind import splitting_little, start_behind, status_of, wait_level
from tests.support.server.ingest_process import IngestProcess
from tests.support.server.moving_partitions import ROOT, History, numbered, settle, watched

_ROOTS = {f"root: {name}": FollowedCase(statements, ()) for name, statements in CASES.items()}
_FEW = {
    name: _ROOTS[f"root: {name}"]
    for name in (
        "drop",
        "detach, in one transaction",
        "truncate",
        "attach filled, insert, detach",
        "twice",
    )
}
_AT_ONCE = "debug_logical_replication_streaming = 'immediate'"
_BEFORE = "INSERT INTO a SELECT g, 'before' FROM generate_series(21, 40) g"
_AFTER = ("INSERT INTO x VALUES (145, 'after')", "INSERT INTO a VALUES (50, 'after')")


class Scene:
    """Tables of some cases, live and settled."""

    def __init__(
        self,
        database: Database,
        ingesting: Start,
        cases: Mapping[str, FollowedCase],
        *,
        roots: bool = True,
        more: tuple[str, ...] = (),
        **options: object,
    ) -> None:
        """``roots``: those of followed tables are followed too; ``more`` is run for each case."""
        self._database = database
        self._cases = cases
        self.tables: dict[str, str] = {}
        for number, (name, case) in enumerate(cases.items()):
            database.run(*numbered([*ROOT, *case.table, *more], number))
            kinds = ("a" if roots or not case.table else "") + ("x" if case.table else "")
            self.tables |= {f"public.{kind}_{number}": name for kind in kinds}
        copies = CopyOptions(workers=1, max_connections=len(self.tables))
        self.ingest = ingesting(*self.tables, heartbeat_interval=0.2, copy=copies, **options)

    def settle(self) -> None:
        self.ingest.wait_live()
        settle(self.ingest, *self.tables)

    def begun(self) -> dict[str, int]:
        """Incarnation of each root that is followed alone."""
        records = {name: self.ingest.known(name) for name in self.tables}
        return {
            name: record.id
            for name, record in records.items()
            if record and not self._cases[self.tables[name]].table
        }

    def change(self, history: History, *before: str) -> None:
        """Run all cases' statements, each case's after ``before``."""
        for number, case in enumerate(self._cases.values()):
            known = [
                name
                for kind in "ax"
                if f"public.{(name := f'{kind}_{number}')}" in self.tables
                and (kind == "x" or case.through_root)
            ]
            history.run(self._database, numbered([*before, *case.statements], number), *known)

    def assert_right(self, history: History) -> int:
        """Tables are PostgreSQL's in the end, and were at each position that was verified."""
        self.settle()
        truths = self.ingest.truths()
        wrong = {
            (name, table)
            for table, name in self.tables.items()
            if self.ingest.state(table) != truths[table]
        }
        assert not wrong, sorted(wrong)
        return history.assert_right_where_verified()


_WAYS = [
    ("followed", True, False),
    *map(
        thorough,
        [
            ("published", False, True),
            ("followed", True, True),
            ("followed", False, True),
            ("followed", False, False),
            ("published", True, True),
            ("published", True, False),
            ("published", False, False),
            ("unpublished", True, True),
            ("unpublished", False, False),
        ],
    ),
]


@pytest.mark.parametrize(("root", "at_once", "stopped"), _WAYS)
@on_versions(18, also=(14, 16))
def test_every_case(
    database: Database, ingesting: Start, root: str, at_once: bool, stopped: bool
) -> None:
    """A followed table's changes come as the root's while it is a partition, if that is published.

    ``at_once``: its statements are one transaction.
    """
    publication = f"pub_{database.name}"
    database.run(f"CREATE PUBLICATION {publication} WITH (publish_via_partition_root)")
    published = (f"ALTER PUBLICATION {publication} ADD TABLE a",) if root == "published" else ()
    cases = dict(_ROOTS) if root == "followed" else {}
    for name, case in FOLLOWED.items():
        done = [each.format(publication=publication) for each in case.statements]
        if at_once:
            done = ["; ".join(("BEGIN", *done, "COMMIT"))]
        if not (at_once and case.alone):
            cases[name] = case._replace(
                statements=(*done, *_AFTER), table=(*case.table, *published)
            )
    scene = Scene(database, ingesting, cases, roots=root == "followed")
    scene.settle()
    before = scene.begun()
    if stopped:
        scene.ingest.stop()
    with watched(scene.ingest) as history:
        scene.change(history)
        if stopped:
            scene.ingest.start()
        assert scene.assert_right(history) or stopped
    assert scene.begun() == before, "a root was copied again as a whole"
    if not stopped and root == "followed":
        counted = scene.ingest.status.tables
        repaired = {name for table, name in scene.tables.items() if counted[table].repaired}
        assert repaired >= {f"root: {name}" for name in REPAIRED}


@on_versions(18, also=(16,))
def test_in_a_split_backlog(database: Database, ingesting: Start, tmp_path: Path) -> None:
    """Its first part is WAL that is worth splitting: rows of a known partition."""
    scene = Scene(database, ingesting, _FEW, catchup=splitting_little(tmp_path))
    scene.settle()
    scene.ingest.stop()
    touched = ["UPDATE a_0 SET v = repeat(md5(random()::text), 16) WHERE id < 15"] * 60
    with watched(scene.ingest) as history:
        database.run(*touched)
        scene.change(history, f"BEGIN; {_BEFORE}; COMMIT")
        history.run(database, touched, "a_0")
        start_behind(scene.ingest)
        wait_level(scene.ingest)
        scene.assert_right(history)
    assert not any(record.leaves for record in scene.ingest.store.tables.values())
    assert not status_of(scene.ingest).segments


@on_versions(18, also=(16,))
def test_in_parts(database: Database, ingesting: Start) -> None:
    database.run(f"ALTER DATABASE {database.name} SET {_AT_ONCE}")
    scene = Scene(database, ingesting, _FEW)
    scene.settle()
    with watched(scene.ingest) as history:
        scene.change(history, f"BEGIN; {_BEFORE}; COMMIT")
        assert scene.assert_right(history)


@on_versions(18, also=(16,))
def test_announced_in_a_subtransaction_that_is_rolled_back(database: Database, live: Start) -> None:
    """The server doesn't announce it again in the same transaction, nor ever after."""
    database.run(
        *ROOT,
        "CREATE TABLE b (id int PRIMARY KEY)",
        f"ALTER DATABASE {database.name} SET {_AT_ONCE}",
    )
    ingest = live("public.a", "public.b", heartbeat_interval=0.2)
    database.run(
        "CREATE TABLE a1 PARTITION OF a FOR VALUES FROM (100) TO (200)",
        "BEGIN; SAVEPOINT s; INSERT INTO a VALUES (101, 'no'); INSERT INTO b VALUES (1);"
        " ROLLBACK TO s; INSERT INTO a VALUES (102, 'yes'); INSERT INTO b VALUES (2); COMMIT",
        "INSERT INTO b VALUES (3)",
        "DROP TABLE a1",
    )
    settle(ingest)
    ingest.assert_equal()


@pytest.mark.parametrize("repaired", [False, True], ids=["copied", "repaired"])
@pytest.mark.parametrize("cases", first(1, [_FEW, _ROOTS]), ids=["few", "all"])
def test_while_each_is_copied(
    database: Database, ingesting: Start, gate: Gate, cases: dict[str, FollowedCase], repaired: bool
) -> None:
    """Every root has a connection, on which all its rows have been read."""
    ninth = "CREATE TABLE a9 PARTITION OF a FOR VALUES FROM (900) TO (999)"
    scene = Scene(
        database,
        ingesting,
        cases,
        more=(ninth, "INSERT INTO a VALUES (901, 'ninth')") if repaired else (),
    )
    ingest = scene.ingest
    before = {}
    if repaired:
        gate.open()
        scene.settle()
        before = scene.begun()
        gate.close_again()
    with watched(ingest) as history:
        if repaired:
            for number in range(len(cases)):
                history.run(database, numbered(["DROP TABLE a9"], number), f"a_{number}")
        ingest.wait_until(
            lambda: all(ingest.status.tables[name].copy for name in scene.tables), "all are copied"
        )
        with gate.holding(ingest):
            scene.change(history)
            ingest.move_on()
        assert scene.assert_right(history)
    if repaired:
        assert scene.begun() == before


@pytest.mark.parametrize("name", first(1, _FEW))
@on_versions(18, also=(15, 16))
def test_killed_at_any_moment(database: Database, live: Start, name: str) -> None:
    """kill -9 after every statement, and while the table is put right."""
    chance = random.Random(name)
    database.run(*ROOT)
    ingest = live("public.a", heartbeat_interval=0.2)
    settle(ingest)
    ingest.stop()
    for statement in (*_FEW[name].statements, _BEFORE, "SELECT", "SELECT"):
        following = IngestProcess(ingest.options, ingest.path, "a")
        try:
            assert not following.ends_within(chance.uniform(0.1, 0.5))
            database.run(statement)
            assert not following.ends_within(chance.uniform(0.0, 0.3))
        finally:
            following.kill()
    ingest.start()
    settle(ingest)
    ingest.assert_equal()
