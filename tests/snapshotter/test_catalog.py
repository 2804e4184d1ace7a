"""The writer's catalog.json: its tables, where all are known, and what others wrote."""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog.testing
from click.testing import CliRunner

from laredo_archive.cli import main
from laredo_archive.manifest import catalog, parser, timeline
from laredo_archive.manifest.catalog import CatalogEntry, DatabaseCatalog, GroupBoundary
from laredo_archive.manifest.model import Manifest
from laredo_archive.manifest.timeline import CommonBoundary
from laredo_archive.storage.destination import Destination
from laredo_snapshotter.app import catalog_keeper
from tests.support import drawn
from tests.support.processes import until, wait_until
from tests.support.writer.served import HISTORY, Served, delete, put, serving
from tests.support.writer.writing import ReadyWriter, Writer, integer

TABLES = ("users", "orders", "quiet")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "state", *TABLES, "notes") as server:
        yield server


def catalog_of(archive: Path) -> DatabaseCatalog:
    path = archive / "catalog.json"
    return catalog.parse(path.read_bytes(), str(path))


def has(archive: Path, *tables: str) -> bool:
    if not (archive / "catalog.json").exists():
        return False
    return set(catalog_of(archive).archives) == {f"{table}/" for table in tables}


def newest(archive: Path) -> GroupBoundary | None:
    (found,) = catalog_of(archive).groups.values()
    return found[-1] if found else None


def test_a_quiet_database_is_known_where_it_is_now(tmp_path: Path, served: Served) -> None:
    """One boundary moves on; there isn't one for every cut."""
    archive = tmp_path / "archive"
    with ReadyWriter(tmp_path, served, *TABLES, interval="100ms"):
        wait_until(lambda: has(archive, *TABLES) and newest(archive) is not None, "a boundary")
        for _ in range(3):
            position = served.advance()
            wait_until(lambda at=position: (newest(archive) or at).position >= at, "known there")  # type: ignore[misc]
        (found,) = catalog_of(archive).groups.values()
        assert len(found) == 1


def test_a_table_that_is_never_seen_leaves_the_positions_of_the_others(
    tmp_path: Path, served: Served
) -> None:
    never, archive = {"quiet": "seen_interval = 0"}, tmp_path / "archive"
    with ReadyWriter(tmp_path, served, *TABLES, interval="100ms", per_table=never):
        wait_until(lambda: has(archive, *TABLES), "a catalog")
        position = served.commit("users", put(1, "x"))
        wait_until(lambda: (last := newest(archive)) and last.position >= position, "it grows")


def test_of_one_table_there_is_none(tmp_path: Path, served: Served) -> None:
    """Its manifest says all; a second table, in the same archive, has it made."""
    archive = tmp_path / "archive"
    with ReadyWriter(tmp_path, served, "users") as alone:
        alone.wait_head(served.commit("users", put(1, "x")))
        assert alone.program.stop() == 0
    assert not (archive / "catalog.json").exists()
    with ReadyWriter(tmp_path, served, "users", "orders", name="two"):
        wait_until(lambda: has(archive, "users", "orders"), "there is one")


def test_processes_share_it_and_a_restart_replaces_its_own(tmp_path: Path, served: Served) -> None:
    archive = tmp_path / "archive"
    with (
        ReadyWriter(tmp_path, served, "users", "orders") as first,
        ReadyWriter(tmp_path, served, "quiet", "notes", name="second"),
    ):
        wait_until(lambda: has(archive, *TABLES, "notes"), "both in it")
        assert len(catalog_of(archive).groups) == 2
        group = catalog_of(archive).archives["users/"].group
        first.program.kill()
        first.program.start()
        wait_until(
            lambda: (
                has(archive, *TABLES, "notes")
                and group not in {each.group for each in catalog_of(archive).archives.values()}
            ),
            "the new one",
        )
        assert len(catalog_of(archive).groups) == 2
    shown = CliRunner().invoke(main, ["ls", str(archive)])
    described = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [each["name"] for each in described] == [
        "public.notes",
        "public.orders",
        "public.quiet",
        "public.users",
    ]
    again = CliRunner().invoke(main, ["ls", described[3]["uri"]])
    assert json.loads(again.stdout.splitlines()[0])["kind"] == "snapshot"
    by_file = CliRunner().invoke(main, ["ls", str(archive / "catalog.json")])
    assert by_file.stdout == shown.stdout
    nowhere = CliRunner().invoke(main, ["ls", str(tmp_path)])
    assert nowhere.exit_code == 1
    assert "no archive there" in nowhere.stderr


@pytest.mark.parametrize("removed", drawn.first(1, [False, True]))
def test_what_isnt_a_catalog_stays_and_the_archives_go_on(
    tmp_path: Path, served: Served, removed: bool
) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    (archive / "catalog.json").write_text("mine")
    with ReadyWriter(tmp_path, served, "users", "orders") as writer:
        wait_until(lambda: bool(writer.logged("catalog not written")), "a warning")
        writer.wait_head(served.commit("users", put(1, "x")))
        assert (archive / "catalog.json").read_text() == "mine"
        if removed:
            (archive / "catalog.json").unlink()
            # It is tried again soon.
            wait_until(lambda: has(archive, "users", "orders"), "a catalog")


async def test_a_defect_in_its_writing_is_retried_after_a_pause() -> None:
    def broken() -> Destination:
        raise KeyError("a defect")

    catalog = catalog_keeper._Catalog(broken, "group")
    entries = {"users/": CatalogEntry("public.users", "group")}
    with ThreadPoolExecutor(1) as executor, structlog.testing.capture_logs() as logged:
        catalog.begin(executor, entries, [])
        await until(lambda: catalog._writing is None)
    assert not catalog.is_due(entries, [], interval=1.0)
    assert [each["event"] for each in logged] == ["catalog not written"]


# Tables of one process have positions in common, whatever their intervals and their changes.


UNEQUAL = {"users": "diff.interval = 60ms", "orders": "diff.interval = 250ms"}


def manifest_of(writer: Writer, table: str) -> Manifest:
    return parser.parse((writer.archive / table / "manifest.json").read_bytes(), table)


def common_of(writer: Writer) -> list[CommonBoundary]:
    """Common boundaries of the manifests as they are now."""
    found = []
    for table in writer.tables:
        found.append(timeline.spans_of(manifest_of(writer, table), table))
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
        (listed,) = catalog_of(writer.archive).groups.values()
        assert len(listed) > 5
        for boundary in listed:
            for table in TABLES:
                spans = timeline.spans_of(manifest_of(writer, table), table)[HISTORY]
                start = [span.start for span in spans if span.start <= boundary.position][-1]
                there = served.state_at(table, boundary.position)
                assert served.state_at(table, start) == there, f"{table} at {boundary}"
        entry = catalog_of(writer.archive).archives["users/"]
        columns = [column.name for column in entry.columns]
        assert (entry.table, columns) == ("public.users", ["id", "name"])
        assert entry.key_fields == ("id",)


def test_what_came_to_nothing_is_known_where_all_are_cut(tmp_path: Path, served: Served) -> None:
    """A queue: rows come and go, and none is left at a cut. An empty diff says that it is known."""
    slow = {"orders": "diff.interval = 300ms"}
    with ReadyWriter(
        tmp_path, served, "users", "orders", interval="100ms", per_table=slow
    ) as writer:
        ordered = [0]

        def changes() -> list[dict[str, Any]]:
            served.commit("users", put(500, "new"), delete(500))
            ordered.append(served.commit("orders", put(1, f"{served.position}")))
            return [each for each in writer.artifacts("users")[1:] if each["change_count"] == 0]

        def needed(end: int) -> bool:
            """True if orders is cut there too, or nothing of it changed since its last cut."""
            cuts = {integer(each["to_position"]) for each in writer.artifacts("orders")}
            return any(max(each for each in ordered if each <= end) <= cut <= end for cut in cuts)

        empty = wait_until(lambda: len(found := changes()) > 3 and found, "four empty diffs")
        ends = [integer(each["to_position"]) for each in empty]
        wait_until(lambda: all(map(needed, ends)), "none is needless")
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
        # Between the head and what was seen a row came and went.
        unchanged = manifest_of(writer, "users").unchanged_until or 0
        assert unchanged < integer(writer.manifest()["seen_position"])


def test_a_table_that_holds_up_many_cuts_is_asked_first() -> None:
    asked: list[str] = []

    def writer(name: str, known: bool | None) -> Any:
        answer = lambda *_: asked.append(name) or known  # type: ignore[func-returns-value]  # noqa: E731
        return SimpleNamespace(is_known_at=answer)

    writers = [*(writer("known", True) for _ in range(200)), writer("held", None)]
    assert not any(catalog_keeper._known_at(writers, "", position) for position in range(64))
    assert len(asked) == 201 + 63
