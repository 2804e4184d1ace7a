"""PostgreSQL is away, isn't fit, comes, goes and returns: all is told, and no table goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from laredo_fanout.client import Mode
from laredo_service.http.page import WIDTH
from tests.fanout.app.reload.reloading import is_live, reload, rewrite
from tests.support.page import Element, page_of
from tests.support.postgres import Database, data_directory
from tests.support.processes import eventually, until, wait_until
from tests.support.server.fanout_program import Fanout, fanout

ORDERS = '{ table = "orders_*" }'
A, B = f"{{ table = a }}, {ORDERS}", f"{{ table = a }}, {{ table = b }}, {ORDERS}"
CONNECTED = 'laredo_source_connected{source="pg"}'
SAFE = 'laredo_slot_safe_wal_bytes{source="pg"}'
KNOWN_BY_ASKING = {
    f'laredo_{what}{{source="pg"}}'
    for what in ("source_lag_bytes", "slot_unconfirmed_wal_bytes", "slot_retained_wal_bytes")
}


def page(server: Fanout) -> Element:
    return page_of(server.program.get("/"))


def lag_is_known(server: Fanout) -> bool:
    """True unless a chart of the lag ends with a gap."""
    gaps = [each.attributes for each in page(server).all("rect", "gap")]
    return all(float(gap["x"]) + float(gap["width"]) < WIDTH - 0.2 for gap in gaps)


def health(server: Fanout, what: str) -> tuple[int, list[str]]:
    """The status and the problems; 0 while nobody answers."""
    found = server.program.get(f"/health/{what}")
    return (0, []) if found is None else (found.status_code, found.json().get("problems", []))


def unreachable(server: Fanout) -> bool:
    return any("can't be reached" in problem for problem in server.problems)


async def test_an_outage_is_told_and_costs_nothing(tmp_path: Path) -> None:
    with data_directory() as data:
        postgres = EmbeddedPostgres(data, settings={"max_slot_wal_keep_size": "1GB"})
        database = Database(postgres, "postgres")
        server = fanout(tmp_path / "server", database.dsn, A)
        with postgres:
            database.make("a", "b", "orders_a", "orders_b")
            database.run("ALTER SYSTEM SET wal_level = 'replica'")
        try:
            server.program.start()
            _away_and_unfit_at_the_start(server, database)
            async with server.follower("public.a") as a:
                await until(lambda: len(a.rows) == 50)
                wait_until(lambda: server.metrics.get(SAFE, 0) > 0, "room for WAL is shown")
                postgres.stop()
                wait_until(lambda: not server.program.is_ready(), "it is away")
                _taken_up_while_it_is_away(server)
                postgres.start()
                database.run("INSERT INTO a VALUES (51)")
                wait_until(lambda: is_live(server, "public.b"), "copied when it is back")
                await until(lambda: len(a.rows) == 51)
                server.program.wait_ready()
                assert page(server).section("Ready")
                wait_until(lambda: lag_is_known(server), "the lag is known")
                postgres.stop()
                wait_until(lambda: not lag_is_known(server), "the lag isn't known")
                _shown_while_it_is_away(server)
                assert len(a.handshakes) == 1, "clients are no part of the source's trouble"
                server.program.kill()
                server.program.start()
                wait_until(lambda: unreachable(server), "it is told again")
                wait_until(lambda: health(server, "serving") == (200, []), "it serves")
                code, problems = health(server, "ready")
                assert code == 503 and problems[0].startswith("source ")
                expected = {f"public.{name}" for name in ("a", "b", "orders_a", "orders_b")}
                assert set(server.status["tables"]) == expected
                assert reload(server)["removed"] == []
                await until(lambda: len(a.handshakes) == 2)
                assert a.handshakes[1].mode is Mode.DELTA
                async with server.follower("public.orders_b") as orders:
                    await until(lambda: len(orders.rows) == 50)
                postgres.start()
                database.make("orders_c")
                database.run("INSERT INTO a VALUES (52)")
                wait_until(lambda: is_live(server, "public.orders_c"), "the new one is live")
                await until(lambda: len(a.rows) == 52)
                assert server.table("public.a")["copied_rows"] == 0
        finally:
            server.program.stop()
            postgres.stop()


def _away_and_unfit_at_the_start(server: Fanout, database: Database) -> None:
    wait_until(lambda: unreachable(server), "it is told")
    assert health(server, "live")[0] == 200
    nothing: tuple[int, list[str]] = (503, ["no table has been copied yet"])
    wait_until(lambda: health(server, "serving") == nothing, "there is nothing to serve")
    database.server.start()
    checked = server.run("check")
    assert checked.returncode == 1
    assert "wal_level" in checked.stdout
    wait_until(lambda: any("wal_level is replica" in p for p in server.problems), "it is unfit")
    assert server.program.is_running()
    database.run("ALTER SYSTEM SET wal_level = 'logical'")
    database.server.stop()
    database.server.start()
    server.program.wait_ready()
    assert health(server, "serving") == health(server, "ready") == (200, [])


def _shown_while_it_is_away(server: Fanout) -> None:
    wait_until(lambda: not server.program.is_ready(), "not ready without its source")
    eventually(lambda: server.metrics[CONNECTED], 0)
    wait_until(lambda: server.status["sources"]["pg"]["error"], "the error is told")
    code, problems = health(server, "ready")
    assert code == 503 and problems[0].startswith("source ")
    assert health(server, "serving") == (200, [])
    wait_until(lambda: not KNOWN_BY_ASKING & server.metrics.keys(), "what isn't known is absent")
    assert server.metrics['laredo_slot_seen_timestamp_seconds{source="pg"}'] > 0
    told = server.status["sources"]["pg"]
    assert told["slot"]["retained_bytes"] is told["lag_bytes"] is None
    assert "unknown bytes and " in server.run("status").stdout
    shown = page(server)
    source = shown.section("Source pg not connected")
    captions = [each.all("span")[0].text for each in source.all("figcaption")]
    assert captions == ["not known", "not known"]
    facts = zip(source.all("dt"), source.all("dd"), strict=True)
    assert {name.text: value.text for name, value in facts}["WAL kept for the slot"] == (
        "– not known"
    )
    assert shown.section("Not ready").text.startswith("Not ready source pg: ")


def _taken_up_while_it_is_away(server: Fanout) -> None:
    rewrite(server, B)
    done: dict[str, Any] = reload(server)
    assert done["added"] == ["public.b"]
    assert "can't be reached" in done["waits_for"]
    eventually(lambda: server.table("public.b")["status"], "waiting")
    assert server.table("public.a")["status"] == "live"
