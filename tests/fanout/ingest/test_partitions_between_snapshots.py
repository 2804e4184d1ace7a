"""Partitions that come, are changed and go between two looks at the catalog.

Each case has a root, and where it says so a followed table, of its own, so that all run at once.
"""

from collections.abc import Callable, Mapping

import pytest

from tests.fanout.ingest.partition_cases import CASES, FOLLOWED, FollowedCase
from tests.support.drawn import thorough
from tests.support.ingest import RunningIngest
from tests.support.postgres import Database, on_versions
from tests.support.server.moving_partitions import ROOT, numbered, settle, watched

Start = Callable[..., RunningIngest]

_AFTER = ("INSERT INTO x VALUES (145, 'after')", "INSERT INTO a VALUES (50, 'after')")


def _assert_followed(
    database: Database,
    ingesting: Start,
    cases: Mapping[str, FollowedCase],
    kinds: str,
    *,
    stopped: bool,
) -> bool:
    """Run the cases and wait until their tables (``kinds``: a, the root; x) are right and verified;
    whether none of them was copied again as a whole."""
    numbers = {name: number for number, name in enumerate(cases)}
    tables = {f"public.{kind}_{number}": name for name, number in numbers.items() for kind in kinds}
    with database.connect() as owner:
        for name, number in numbers.items():
            for statement in numbered([*ROOT, *cases[name].table], number):
                owner.execute(statement.encode())
    ingest = ingesting(*tables, heartbeat_interval=0.3)
    ingest.wait_live()
    settle(ingest, *tables)
    before = [ingest.record(table) for table in tables]
    if stopped:
        ingest.stop()
    with watched(ingest) as history:
        for name, number in numbers.items():
            known = [
                f"{kind}_{number}" for kind in kinds if kind == "x" or cases[name].through_root
            ]
            history.run(database, numbered(cases[name].statements, number), *known)
        if stopped:
            ingest.start()
        ingest.wait_live()
        settle(ingest, *tables)
        wrong = {
            (name, table): (state, truth)
            for table, name in tables.items()
            if (state := ingest.state(table)) != (truth := ingest.truth(table))
        }
        assert not wrong, sorted(wrong)
        assert history.assert_right_where_verified() or stopped
    return [each and each.id for each in map(ingest.record, tables)] == [
        each and each.id for each in before
    ]


@pytest.mark.parametrize("stopped", [False, True])
@on_versions(18, also=(16,))
def test_partition_of_a_followed_root(database: Database, ingesting: Start, stopped: bool) -> None:
    cases = {name: FollowedCase(statements, ()) for name, statements in CASES.items()}
    assert _assert_followed(database, ingesting, cases, "a", stopped=stopped)


_WAYS = [
    ("followed", True, False),
    ("published", False, True),
    *map(
        thorough,
        [
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
def test_followed_table_that_is_a_partition_for_a_while(
    database: Database, ingesting: Start, root: str, at_once: bool, stopped: bool
) -> None:
    """Its changes come as the root's then, if that is published."""
    publication = f"pub_{database.name}"
    with database.connect() as owner:
        owner.execute(
            f"CREATE PUBLICATION {publication} WITH (publish_via_partition_root)".encode()
        )
    published = (f"ALTER PUBLICATION {publication} ADD TABLE a",) if root == "published" else ()
    cases = {}
    for name, case in FOLLOWED.items():
        done = [each.format(publication=publication) for each in case.statements]
        if at_once:
            done = ["; ".join(("BEGIN", *done, "COMMIT"))]
        if not (at_once and case.alone):
            cases[name] = case._replace(
                statements=(*done, *_AFTER), table=(*case.table, *published)
            )
    kinds = "ax" if root == "followed" else "x"
    _assert_followed(database, ingesting, cases, kinds, stopped=stopped)
