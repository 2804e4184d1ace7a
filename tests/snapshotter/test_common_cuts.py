"""Tables of one process have positions in common, whatever their intervals and their changes."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laredo_archive.manifest import parser, timeline
from laredo_archive.manifest.timeline import CommonBoundary
from tests.support.processes import wait_until
from tests.support.writer.served import Served, delete, put, rows
from tests.support.writer.writing import ReadyWriter, Writer, integer

TABLES = ("users", "orders", "quiet")
UNEQUAL = {"users": "diff.interval = 60ms", "orders": "diff.interval = 250ms"}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "state") as server:
        for table in TABLES:
            server.add(table, rows(0, 20))
        server.start()
        yield server


def common_of(writer: Writer) -> list[CommonBoundary]:
    """Common boundaries of the manifests as they are now."""
    found = []
    for table in writer.tables:
        manifest = parser.parse((writer.archive / table / "manifest.json").read_bytes(), table)
        found.append(timeline.spans_of(manifest, table))
    return [each for of_history in timeline.common(found).values() for each in of_history]


def test_unequal_intervals_and_a_quiet_table(tmp_path: Path, served: Served) -> None:
    chance = random.Random(5)
    with ReadyWriter(tmp_path, served, *TABLES, interval="110ms", per_table=UNEQUAL) as writer:
        while len(writer.kinds("orders")) < 12:
            table = chance.choice(["users", "users", "orders"])
            number = chance.randrange(50)
            known = b"%d" % number in served.state_at(table, served.position)
            change = delete(number) if known and chance.random() < 0.5 else put(number, "x")
            served.commit(table, change)
        last = max(integer(found["to_position"]) for found in writer.artifacts("orders"))
        wait_until(lambda: common_of(writer)[-1].position >= last, "seen in the quiet table")
        found = common_of(writer)
        for table, position in [(t, served.position) for t in ("users", "orders")]:
            writer.wait_status({"stream_position": f"0/{position:X}"}, table)
        assert writer.kinds("quiet") == [("snapshot", 1)]
        # Diffs of "orders" end at the multiples of the longest interval, and where all are cut.
        assert len({each.position for each in found}) >= 10
        for each in found:
            for table, span in zip(writer.tables, each.spans, strict=True):
                there = served.state_at(table, each.position)
                assert served.state_at(table, span.start) == there, f"{table} at {each.position:#x}"
                assert served.state_at(table, each.until) == there


def test_what_came_to_nothing_is_known_where_all_are_cut(tmp_path: Path, served: Served) -> None:
    """A queue: rows come and go, and none is left at a cut. An empty diff says that it is known."""
    slow = {"orders": "diff.interval = 300ms"}
    with Writer(tmp_path, served, "users", "orders", interval="100ms", per_table=slow) as writer:
        writer.program.wait_ready()

        def changes() -> list[dict[str, Any]]:
            served.commit("users", put(500, "new"), delete(500))
            served.commit("orders", put(1, f"{served.position}"))
            return [each for each in writer.artifacts("users")[1:] if each["change_count"] == 0]

        wait_until(lambda: len(changes()) > 3, "four empty diffs")
        empty = changes()
        ends = {integer(each["to_position"]) for each in empty}
        wait_until(
            lambda: ends <= {integer(each["to_position"]) for each in writer.artifacts("orders")},
            "orders is cut at each, so that none is needless",
        )
        assert all(each["cancelled"] == 1 for each in empty)


def test_alone_a_table_needs_no_empty_diffs(tmp_path: Path, served: Served) -> None:
    with ReadyWriter(tmp_path, served, "users", interval="50ms") as writer:

        def seen_after_one_more() -> bool:
            served.commit("users", put(500, "new"), delete(500))
            writer.wait_status({"buffer_depth": 0, "stream_position": f"0/{served.position:X}"})
            return integer(writer.manifest()["seen_position"]) > first

        first = served.position
        wait_until(seen_after_one_more, "seen")
        assert writer.kinds() == [("snapshot", 1)]
        manifest = parser.parse((writer.archive / "users" / "manifest.json").read_bytes(), "users")
        # Between the head and what was seen a row came and went.
        assert (manifest.unchanged_until or 0) < integer(writer.manifest()["seen_position"])
