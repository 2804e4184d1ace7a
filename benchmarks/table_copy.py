"""Copy into the durable store, beside what psql needs to throw the same rows away."""

import time
from statistics import median

from benchmarks import bench_table
from benchmarks.figures import Figure
from benchmarks.processes import wait_until
from benchmarks.scenario import Scenario

SUBJECT = "copy"
_STATEMENT = f"COPY (SELECT row_to_json(t) FROM {bench_table.NAME} t) TO STDOUT"


def run(scenario: Scenario) -> list[Figure]:
    """The first start of the server, from its first copied row to the live table."""
    before = [scenario.psql(_STATEMENT) for _ in range(2)]
    scenario.start_server()
    began: float | None = None

    def live() -> float | None:
        nonlocal began
        found = scenario.status()
        now = time.perf_counter()
        if found is None:
            return None
        table = found["tables"][bench_table.QUALIFIED]
        # The copy begins before its first rows are seen: counted from the look before.
        if began is None and not (table["copied_rows"] or table["ranges_done"]):
            live.before = now  # type: ignore[attr-defined]
        elif began is None:
            began = getattr(live, "before", now)
        return now if table["status"] == "live" else None

    ended: float = wait_until(live, timeout=600, what="the copy's end", pause=0.01)
    assert began is not None
    scenario.wait_ready()
    after = [scenario.psql(_STATEMENT) for _ in range(2)]
    return [
        Figure(
            SUBJECT,
            "copy into the durable store",
            scenario.rows / (ended - began),
            "rows/s",
            scenario.rows / median([*before, *after]),
            "psql COPY of row_to_json",
            target=0.8,
            target_is_ratio=True,
        )
    ]
