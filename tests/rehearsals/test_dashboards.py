"""The dashboards over a real Prometheus that scrapes the real programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsals.prometheus import DASHBOARDS, Prometheus, watching
from tests.support.postgres import Database
from tests.support.processes import wait_until
from tests.support.writer.archiving_programs import Named, configured

pytestmark = pytest.mark.thorough

_VARIABLES = {"$instance": ".*", "$table": ".*", "$__rate_interval": "1m"}
_EMPTY_WHILE_ALL_IS_WELL = {
    "Copies: done",
    "Oldest open transaction",
    "Disconnected",
    "AWS requests",
    "Sinks: artifacts not notified",
    "Sinks: notices",
    "Notices missed",
}


def test_every_panel_shows_something(tmp_path: Path, database: Database) -> None:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 10)"
    )
    programs = configured(tmp_path, database, [Named("public", "t", None)])
    jobs = {"laredo_fanout": programs.server.http, "laredo_snapshotter": programs.writer.http}
    with programs.running(), watching(tmp_path / "prometheus", **jobs) as prometheus:
        database.run("INSERT INTO t VALUES (11)")
        for dashboard in DASHBOARDS:
            for panel in json.loads(dashboard.read_text())["panels"]:
                if panel["type"] == "row" or panel["title"] in _EMPTY_WHILE_ALL_IS_WELL:
                    continue
                _shows(prometheus, panel)


def _shows(prometheus: Prometheus, panel: dict[str, Any]) -> None:
    """Wait until it does: rates need two scrapes."""

    def drawn() -> bool:
        shown = [_asked(prometheus, target["expr"]) for target in panel["targets"]]
        return any(shown)

    wait_until(drawn, f"{panel['title']} shows something")


def _asked(prometheus: Prometheus, expression: str) -> bool:
    for variable, value in _VARIABLES.items():
        expression = expression.replace(variable, value)
    return bool(prometheus.ask("query", query=expression)["result"])
