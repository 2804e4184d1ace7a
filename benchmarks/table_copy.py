"""Copy into the durable store, beside what psql needs to throw the same rows away."""

from datetime import datetime
from statistics import median
from typing import Any

import orjson

from benchmarks import bench_table
from benchmarks.figures import Figure
from benchmarks.processes import wait_until
from benchmarks.scenario import Scenario

SUBJECT = "copy"
_STATEMENT = f"COPY (SELECT row_to_json(t) FROM {bench_table.NAME} t) TO STDOUT"
_BEGINS, _LIVE = "copy begins", "table live"


def run(scenario: Scenario) -> list[Figure]:
    """The first start of the server, by its own log: from the first chunk to the live table."""
    before = [scenario.psql(_STATEMENT) for _ in range(2)]
    server = scenario.start_server()

    def ended() -> dict[str, Any] | None:
        server.check()
        found = {
            entry["event"]: entry
            for line in server.log.read_bytes().splitlines()
            if line.startswith(b"{") and (entry := orjson.loads(line)).get("event")
        }
        return found if _LIVE in found else None

    # Its log, because each look at /status would take time from the copy.
    found: dict[str, Any] = wait_until(ended, timeout=600, what="the copy's end", pause=0.1)
    assert found[_LIVE]["rows"] == scenario.rows
    seconds = (_time(found[_LIVE]) - _time(found[_BEGINS])).total_seconds()
    scenario.wait_ready()
    after = [scenario.psql(_STATEMENT) for _ in range(2)]
    return [
        Figure(
            SUBJECT,
            "copy into the durable store",
            scenario.rows / seconds,
            "rows/s",
            scenario.rows / median([*before, *after]),
            "psql COPY of row_to_json",
            target=0.8,
            target_is_ratio=True,
        )
    ]


def _time(entry: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(entry["timestamp"])
