"""Tables that are followed themselves, and are partitions of another one between two catalog
snapshots: their changes come as the root's then, if that is published."""

from collections.abc import Callable

import pytest

from tests.fanout.ingest.partition_cases import FOLLOWED
from tests.support.drawn import thorough
from tests.support.ingest import RunningIngest
from tests.support.postgres import Database, on_versions
from tests.support.server.moving_partitions import ROOT, numbered, settle, watched

Start = Callable[..., RunningIngest]

_AFTER = ("INSERT INTO x VALUES (145, 'after')", "INSERT INTO a VALUES (50, 'after')")


@pytest.mark.parametrize(
    ("root", "at_once", "stopped"),
    [
        ("followed", True, False),
        ("published", False, True),
        *map(
            thorough,
            [
                ("followed", True, True),
                ("followed", False, True),
                ("published", True, True),
                ("followed", False, False),
                ("published", True, False),
                ("published", False, False),
                ("unpublished", True, True),
                ("unpublished", False, False),
            ],
        ),
    ],
)
@on_versions(18, also=(14, 16))
def test_followed_partition_that_comes_and_goes(
    database: Database, ingesting: Start, root: str, at_once: bool, stopped: bool
) -> None:
    """Each case has a root and a table of its own."""
    names = [name for name, case in FOLLOWED.items() if not (at_once and case.alone)]
    numbers = {name: number for number, name in enumerate(names)}
    cases = {number: FOLLOWED[name] for name, number in numbers.items()}
    with database.connect() as owner:
        for number, case in cases.items():
            for statement in numbered([*ROOT, *case.table], number):
                owner.execute(statement.encode())
        if root == "published":
            roots = ", ".join(f"a_{number}" for number in cases)
            owner.execute(
                f"CREATE PUBLICATION pub_{database.name} FOR TABLE {roots}"
                " WITH (publish_via_partition_root)".encode()
            )
    kinds = "ax" if root == "followed" else "x"
    tables = [f"public.{kind}_{number}" for number in cases for kind in kinds]
    ingest = ingesting(*tables, heartbeat_interval=0.3)
    ingest.wait_live()
    settle(ingest, *tables)
    if stopped:
        ingest.stop()
    with watched(ingest) as history:
        for number, case in cases.items():
            done = ["; ".join(("BEGIN", *case.statements, "COMMIT"))]
            done = [*(done if at_once else case.statements), *_AFTER]
            followed = [f"{kind}_{number}" for kind in kinds]
            named = [
                each.replace("PUBLICATION pub", f"PUBLICATION pub_{database.name}")
                for each in numbered(done, number)
            ]
            history.run(database, named, *followed)
        if stopped:
            ingest.start()
        ingest.wait_live()
        settle(ingest, *tables)
        wrong = {
            (name, table): (ingest.state(table), truth)
            for name, number in numbers.items()
            for table in (f"public.{kind}_{number}" for kind in kinds)
            if ingest.state(table) != (truth := ingest.truth(table))
        }
        assert not wrong, sorted(wrong)
        assert history.assert_right_where_verified()
