"""A prepared backlog of updates: slot -> durable store -> one batch client."""

import subprocess
import time

import psycopg

from benchmarks import bench_table
from benchmarks.figures import Figure
from benchmarks.processes import wait_until
from benchmarks.scenario import PUBLICATION, SLOT, Scenario, told

SUBJECT = "backlog"
_LIMIT_SLOT = "bench_recvlogical"
_SIZE = 1000


def run(scenario: Scenario) -> list[Figure]:
    """Keys in order, then keys at random; the server is down while the updates are made."""
    return [
        _one(scenario, "keys in order", 0.7, in_order=True),
        _one(scenario, "random keys", 0.4, in_order=False),
    ]


def _one(scenario: Scenario, what: str, target: float, *, in_order: bool) -> Figure:
    position, history = scenario.place()
    scenario.stop_server()
    scenario.say(f"preparing {scenario.updates:,} updates, {what}")
    with scenario.connect() as database:
        database.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (_LIMIT_SLOT,)
        )
        update = bench_table.update_in_order if in_order else bench_table.update_at_random
        before = _updated(database)
        update(database, scenario.updates, scenario.rows, _SIZE)
        made = _updated(database) - before
        database.execute("CHECKPOINT")
        scenario.say("draining with pg_recvlogical")
        limit = made / _recvlogical(scenario)
        database.execute("SELECT pg_drop_replication_slot(%s)", (_LIMIT_SLOT,))
        scenario.say("draining with laredo-fanout")
        arguments = ("follow", "--server", scenario.address, "--table", bench_table.QUALIFIED)
        place = ("--position", position, "--history", history, "--changes", made)
        with scenario.running(
            "counting_client", *arguments, *place, what="client, counting"
        ) as client:
            time.sleep(1)  # its imports are not what is measured
            scenario.start_server()
            began = _slot_taken(scenario)
            while True:
                event = told(client)
                if event["event"] == "last":
                    break
            seconds = event["at"] - began
    return Figure(
        SUBJECT,
        f"{made:,} updates to one client, {what}",
        made / seconds,
        "changes/s",
        limit,
        "pg_recvlogical",
        target=target,
        target_is_ratio=True,
        note="from the slot's start to the last change at the client",
    )


def _updated(database: "psycopg.Connection[tuple[object, ...]]") -> int:
    """How many updates the table ever had: a key drawn twice in a transaction counts once."""
    found = database.execute(f"SELECT sum(n - id % 1000) FROM {bench_table.NAME}").fetchone()
    assert found is not None
    return int(str(found[0]))


def _recvlogical(scenario: Scenario) -> float:
    began = time.perf_counter()
    subprocess.run(
        [
            str(scenario.postgres.bin / "pg_recvlogical"),
            f"--dbname={scenario.dsn}",
            f"--slot={_LIMIT_SLOT}",
            "--start",
            "--no-loop",
            "--option=proto_version=1",
            f"--option=publication_names={PUBLICATION}",
            f"--endpos={scenario.wal_position()}",
            "--file=/dev/null",
        ],
        check=True,
    )
    return time.perf_counter() - began


def _slot_taken(scenario: Scenario) -> float:
    """When the server's walsender began to use the slot."""
    with scenario.connect() as database:

        def active() -> float | None:
            found = database.execute(
                "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active", (SLOT,)
            ).fetchone()
            return time.time() if found else None

        began: float = wait_until(active, timeout=60, what="the server's stream", pause=0.005)
        return began
