"""The real server while it releases a backlog out of order: who sees what, killed or not."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from laredo_fanout.client import FanoutClient
from tests.fanout.app.fanout_program import Fanout, fanout, started
from tests.fanout.catchup.behind import head_stopped
from tests.fix_postgres import Database
from tests.processes import wait_until

_ROWS = 3_000
_PATIENCE_S = 60
_CATCHUP = """
sources.pg.catchup { mode = auto, threshold_bytes = 200000, check_interval = 10ms,
                     min_segment_bytes = 100000, ordering = relaxed }
"""
_SNAPSHOTS = """{ table = t, targets = [ { heartbeat_interval = 200ms
    snapshot { interval = 1s, store = local, store_config { path = "%s" }
               retention { keep_count = 1000, max_age = 1h } } } ] }"""


@pytest.fixture
def server(tmp_path: Path, database: Database) -> Iterator[Fanout]:
    with database.connect() as owner:
        owner.execute("CREATE TABLE t (id int PRIMARY KEY, v int, a text)")
        owner.execute(
            "INSERT INTO t SELECT g, 0, repeat('x', 1500) FROM generate_series(1, %s) g", (_ROWS,)
        )
    tables, slot = _SNAPSHOTS % (tmp_path / "snapshots"), f"s_{database.name}"
    with started(fanout(tmp_path / "server", database.dsn, tables, _CATCHUP, slot=slot)) as made:
        yield made


def _fall_behind(server: Fanout, database: Database) -> None:
    """While the server stands still: each row is changed twice, some go, some come."""
    psutil.Process(server.program.pid).suspend()
    with database.connect() as owner:
        for round_ in range(2):
            for first in range(0, _ROWS, 50):
                owner.execute(
                    "UPDATE t SET v = v + 1 WHERE id > %s AND id <= %s", (first, first + 50)
                )
            owner.execute("DELETE FROM t WHERE id %% 100 = %s", (round_,))
            owner.execute(
                "INSERT INTO t VALUES (%s, 7, 'new') ON CONFLICT (id) DO UPDATE SET v = t.v + 1",
                (_ROWS + 1 + round_,),
            )
    psutil.Process(server.program.pid).resume()


def _catchup(server: Fanout) -> dict[str, Any]:
    answer = server.program.get("/status")
    shown: dict[str, Any] = {} if answer is None else answer.json()["sources"]["pg"]["catchup"]
    return shown


@contextmanager
def _out_of_order(server: Fanout) -> Iterator[None]:
    """Within the block the first segment isn't decoded, and others are released."""
    with head_stopped(server.program.pid):
        wait_until(lambda: _catchup(server).get("out_of_order"), "some comes early", _PATIENCE_S)
        yield


def _level(server: Fanout) -> bool:
    catchup = _catchup(server)
    return bool(catchup) and not catchup["active"] and catchup["lag_bytes"] < 100_000


def _values(client: FanoutClient) -> dict[int, int]:
    found = {}
    for number in range(1, _ROWS + 3):
        row = client.lookup(number)
        if row is not None:
            found[number] = row["v"]
    return found


def _are_in_order(values: dict[int, int]) -> bool:
    """Rows are changed by ascending ids, one round after the other."""
    changes = [value for key, value in sorted(values.items()) if key <= _ROWS]
    return changes == sorted(changes, reverse=True) and changes[0] - changes[-1] <= 1


def _truth(database: Database) -> dict[int, int]:
    with database.connect() as owner:
        rows = owner.execute("SELECT id, v FROM t").fetchall()
    return {int(str(key)): int(str(value)) for key, value in rows}


def _wait_equal(client: FanoutClient, truth: dict[int, int]) -> None:
    wait_until(lambda: _values(client) == truth, "all rows as they are", _PATIENCE_S)
    assert len(client) == len(truth)


def test_early_for_who_wants_it_and_at_last_for_all(server: Fanout, database: Database) -> None:
    address = f"127.0.0.1:{server.grpc_port}"
    with (
        FanoutClient(address, "public.t", client_id="early") as early,
        FanoutClient(address, "public.t", client_id="in-order", in_order=True) as in_order,
    ):
        for client in (early, in_order):
            client.await_ready(30)
        _fall_behind(server, database)
        with _out_of_order(server):
            wait_until(lambda: in_order.out_of_order, "one is told")
            before, place = _values(in_order), in_order.position
            assert _are_in_order(before)
            wait_until(lambda: not _are_in_order(_values(early)), "early changes")
            assert early.out_of_order
            assert early.position == in_order.position == place
            segments = _catchup(server)["segments"]
            assert any(each["released"] for each in segments[1:])
            assert server.metrics['laredo_catchup_out_of_order{source="pg"}'] == 1
            failed = server.table("public.t")["snapshots"]["failed"]
            wait_until(
                lambda: (
                    server.table("public.t")["snapshots"]["failed"] > failed
                    and "out of order" in server.table("public.t")["snapshots"]["error"]
                ),
                "no snapshot is taken",
            )
            assert _values(in_order) == before
            refused = server.run("recopy", "public.t")
            assert refused.returncode == 1
            assert "out of order" in refused.stderr
        for client in (early, in_order):
            _wait_equal(client, _truth(database))
            wait_until(lambda client=client: not client.out_of_order, "order")
        wait_until(lambda: server.table("public.t")["snapshots"]["error"] is None, "a snapshot")
        assert server.metrics['laredo_catchup_out_of_order{source="pg"}'] == 0


def test_killed_out_of_order_it_goes_on(server: Fanout, database: Database) -> None:
    address = f"127.0.0.1:{server.grpc_port}"
    with (
        FanoutClient(address, "public.t", client_id="early") as early,
        FanoutClient(address, "public.t", client_id="in-order", in_order=True) as in_order,
    ):
        for client in (early, in_order):
            client.await_ready(30)
        for _ in range(2):
            _fall_behind(server, database)
            with _out_of_order(server):
                wait_until(lambda: early.out_of_order, "the client is told")
                server.program.stop(signal.SIGKILL)
            server.program.start()
            server.program.wait_ready()
            wait_until(lambda: _level(server), "it is level", _PATIENCE_S)
            for client in (early, in_order):
                _wait_equal(client, _truth(database))
