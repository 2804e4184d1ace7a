"""The server's status page, as a parser reads it from the real program."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from laredo_fanout.app import http
from laredo_fanout.app.http import LagHistory
from laredo_fanout.batch.status import IngestStatus
from laredo_fanout.catchup.plan import CatchupStatus, SegmentStatus
from laredo_service.http.server import Endpoints
from tests.support.page import Element, page_of
from tests.support.postgres import Database, new_database
from tests.support.processes import PATIENCE_S, until, wait_until
from tests.support.server.fanout_program import Fanout, fanout, started
from tests.support.writer.archiving_programs import hocon

SECTIONS = ("Tables", "Clients")
HOSTILE = '"><script>alert(1)</script><img src=x onerror=f()>{{7+7}}'
"""A table's name, as its owner may choose it. No pattern: a dropped table of one is forgotten."""


def page(server: Fanout) -> Element:
    return page_of(server.program.get("/"))


def row(page: Element, table: str) -> dict[str, str]:
    """A table's figures by the names that a reader sees."""
    for line in page.section("Tables").all("tr"):
        if line.all("th") and line.all("th")[0].text == table:
            return {cell.attributes["data-label"]: cell.text for cell in line.all("td")}
    raise AssertionError(page.section("Tables").text)


def facts(section: Element) -> dict[str, str]:
    names, values = section.all("dt"), section.all("dd")
    return {name.text: value.text for name, value in zip(names, values, strict=True)}


@pytest.fixture(scope="module")
def served(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Fanout, Database]]:
    """A server of a table of 1,234 rows and of one with a hostile name."""
    with new_database(postgres) as database:
        quoted = HOSTILE.replace('"', '""')
        database.run(
            "CREATE TABLE t (id int PRIMARY KEY)",
            "INSERT INTO t SELECT generate_series(1, 1234)",
            "ANALYZE t",
            f'CREATE TABLE "{quoted}" (id int PRIMARY KEY)',
        )
        tables = f"{{ table = t }}, {{ table = {hocon(HOSTILE)} }}"
        directory = tmp_path_factory.mktemp("server")
        with started(fanout(directory, database, tables)) as server:
            yield server, database


async def test_what_the_page_shows_is_what_status_shows(served: tuple[Fanout, Database]) -> None:
    server, database = served
    async with server.follower("public.t") as follower:
        await until(lambda: len(follower.rows) == 1234)
        live = "follower public.t live 0"
        await until(lambda: live in page(server).section("Clients").text)
        shown = page(server)
    assert shown.all("h1")[0].text == "laredo-fanout"
    assert shown.section("Ready").attributes["data-title"] == "laredo-fanout: ready"
    assert row(shown, "public.t") == {
        "state": "live",
        "rows": "1,234",
        "clients": "1",
        "changes kept": "0",
        "back to": "–",
    }
    source = shown.section("Source pg streaming")
    assert facts(source)["slot"] == f"s_{database.name}"
    assert facts(source)["publication"] == "laredo"
    charts = source.all("figure")
    assert len(charts) == 2 and all(each.all("path", "line") for each in charts)
    assert [each.all("rect") for each in charts] == [[], []]


@pytest.mark.parametrize(("error", "gaps"), [(None, 0), ("connection refused", 1)])
def test_a_start_is_a_gap_only_if_postgresql_could_not_be_asked(
    error: str | None, gaps: int
) -> None:
    history = LagHistory(lambda: IngestStatus(error=error))
    history.take(time.monotonic())
    for chart in (history.in_bytes(), history.in_seconds()):
        assert len(chart.gaps) == gaps and not chart.lines


def test_a_copy_has_a_bar_until_it_is_done(served: tuple[Fanout, Database]) -> None:
    server, database = served
    with database.connect() as locking:
        # A re-copy can't read the table while it is locked.
        locking.execute("BEGIN")
        locking.execute("LOCK TABLE t")
        recopy = server.program.http + "/tables/public.t/recopy"
        asked = httpx.post(recopy, timeout=PATIENCE_S)
        assert asked.status_code == 202, asked.text
        pid = locking.info.backend_pid
        waits = f"re-copy 0 % waits for the transactions of PostgreSQL process {pid}"
        tables = wait_until(
            lambda: waits in (found := page(server).section("Tables")).text and found, "a bar"
        )
        bar = tables.all("progress")[0]
        assert bar.attributes == {"max": "1", "value": "0.0", "aria-label": "copy of public.t"}
        locking.execute("COMMIT")
        wait_until(lambda: not page(server).section("Tables").all("progress"), "it is done")


async def page_about(status: dict[str, Any], query: str = "") -> Element:
    """The page of a server whose /status would be this."""
    app = Endpoints()
    http.add(app, lambda: status, LagHistory(IngestStatus))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://page") as client:
        return page_of(await client.get(f"/{query}"))


async def test_of_100_tables_and_1000_clients_what_is_not_well_comes_first(
    served: tuple[Fanout, Database],
) -> None:
    status = served[0].status
    nothing = {"error": None, "copy": None, "recopy": None, "altered_by": []}
    sound = status["tables"]["public.t"] | nothing
    names = [f"public.t{number}" for number in range(100)]
    status["tables"] = dict.fromkeys(names, sound)
    status["tables"]["public.t50"] = sound | {"status": "copying", "phase": "copying"}
    client = {
        "table": "public.t", "peer": "ipv4:10.0.0.1:40000", "state": "live", "sequence": 9_000,
        "buffer_depth": 0, "connected_at": status["started_at"], "batch": True, "filtered": False,
    }  # fmt: skip
    behind = {500: 8_000, 700: 1_000}
    status["clients"] = [
        client | {"client_id": f"c{number}", "behind": behind.get(number, 0)}
        for number in range(1_000)
    ]
    status |= {"ready": False, "problems": ["table public.t50: copying"]}
    shown = await page_about(status)
    # A copy is no failure, and isn't shown as one.
    assert shown.section("Not ready").attributes["class"] == "verdict busy"
    assert "public.t50: copying" in shown.section("Not ready").text
    tables, clients = shown.section("Tables"), shown.section("Clients")
    assert [line.text for line in tables.all("tbody")[0].all("th")][:2] == [
        "public.t50",
        "public.t0",
    ]
    assert badges(tables)[:2] == [("copying", "badge busy"), ("live", "badge good")]
    first = [line.all("th")[0].text for line in clients.all("tbody")[0].all("tr")[:2]]
    assert first == ["c500", "c700"]
    assert badges(clients)[:2] == [("live", "badge busy"), ("live", "badge good")]
    assert "8,000 changes c500" in shown.section("Overview").text
    assert [len(each.all("tbody")[0].all("tr")) for each in (tables, clients)] == [20, 20]
    every = await page_about(status, "?all")
    lengths = [len(every.section(title).all("tbody")[0].all("tr")) for title in SECTIONS]
    assert lengths == [100, 1_000]

    broken = "it has no usable replica identity"
    status["tables"]["public.t99"] = sound | {"status": "waiting", "error": broken}
    status["problems"].append(f"table public.t99: {broken}")
    shown = await page_about(status)
    verdict = shown.section("Not ready")
    assert verdict.attributes["class"] == "verdict bad"
    items = [(item.attributes.get("class"), item.text) for item in verdict.all("li")]
    assert items == [("bad", f"table public.t99: {broken}"), (None, "table public.t50: copying")]
    assert badges(shown.section("Tables"))[:2] == [
        ("waiting", "badge bad"),
        ("copying", "badge busy"),
    ]


def badges(section: Element) -> list[tuple[str, str]]:
    return [(each.text, each.attributes["class"]) for each in section.all("span", "badge")]


async def test_the_segments_of_a_split_backlog_have_bars(served: tuple[Fanout, Database]) -> None:
    status = served[0].status
    # A real backlog is split for an instant only; the rest of the status is a real one.
    segments = (
        SegmentStatus(1, 0x1000, 0x2000, 0x2000, 0x2000, "decoded", 5 << 20, None),
        SegmentStatus(2, 0x2000, 0x4000, 0x2800, 0x2800, "decoding", 1 << 20, 71),
        SegmentStatus(3, 0x4000, None, 0x4000, 0x4000, "waiting", 0, None),
    )
    split = CatchupStatus(
        "auto", 1, 1, 1, 1, 0, 0, "a trouble of before", 0x1000, 6 << 20, segments
    )
    status["sources"]["pg"]["catchup"] = split.to_json()
    source = (await page_about(status)).section("Source pg")
    assert "the backlog is split" in source.text and "a trouble of before" in source.text
    lines = [[cell.text for cell in line.all("td")] for line in source.all("tr")[1:]]
    assert lines == [
        ["decoded", "100 %", "0/1000", "0/2000", "5.2 MB"],
        ["decoding", "25 %", "0/2000", "0/4000", "1.0 MB"],
        ["waiting", "as it comes", "0/4000", "the end", "0 B"],
    ]
    assert [bar.attributes["value"] for bar in source.all("progress")] == ["1.0", "0.25"]


def test_a_hostile_name_is_text(served: tuple[Fanout, Database]) -> None:
    server, database = served
    shown = page(server)
    # It also stands in an attribute and in a sentence.
    with database.connect() as owner:
        owner.execute('DROP TABLE "{}"'.format(HOSTILE.replace('"', '""')).encode())
    wait_until(lambda: any(HOSTILE in each for each in server.problems), "it is missed")
    missed = page(server)
    assert row(shown, f"public.{HOSTILE}")["state"] == "live"
    assert HOSTILE in missed.section("Not ready").text
    for each in (shown, missed):
        assert [script.attributes["src"] for script in each.all("script")] == ["page/page.js"]
        assert not each.all("img")
