"""A prepared backlog of updates: slot -> durable store -> one batch client."""

import subprocess
import time

from benchmarks import bench_table
from benchmarks.figures import Figure
from benchmarks.scenario import PUBLICATION, Scenario, told

SUBJECT = "backlog"
_LIMIT_SLOT = "bench_recvlogical"
_SIZE = 1000


def run(scenario: Scenario) -> list[Figure]:
    """Keys in order, then keys at random.

    The ingest process stands still (SIGSTOP) while the updates are made, so that
    no start of a program is in the figure.
    """
    return [
        _one(scenario, "keys in order", 0.7, in_order=True),
        _one(scenario, "random keys", 0.4, in_order=False),
    ]


def _one(scenario: Scenario, what: str, target: float, *, in_order: bool) -> Figure:
    position, history = scenario.place()
    made = scenario.updates
    arguments = ("follow", "--server", scenario.address, "--table", bench_table.QUALIFIED)
    place = ("--position", position, "--history", history, "--changes", made)
    with (
        scenario.connect() as database,
        scenario.running("counting_client", *arguments, *place, what="client, counting") as client,
    ):
        assert told(client)["event"] == "handshake"
        database.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (_LIMIT_SLOT,)
        )
        with scenario.paused_server() as server:
            scenario.say(f"preparing {made:,} updates, {what}")
            update = bench_table.update_in_order if in_order else bench_table.update_at_random
            update(database, made, scenario.rows, _SIZE)
            database.execute("CHECKPOINT")
            scenario.say("draining with pg_recvlogical")
            limit = made / _recvlogical(scenario)
            database.execute("SELECT pg_drop_replication_slot(%s)", (_LIMIT_SLOT,))
            scenario.say("draining with laredo-fanout")
            began = time.time()
            server.go_on()
            assert told(client)["event"] == "first"
            seconds = told(client)["at"] - began
    return Figure(
        SUBJECT,
        f"{made:,} updates to one client, {what}",
        made / seconds,
        "changes/s",
        limit,
        "pg_recvlogical",
        target=target,
        target_is_ratio=True,
        note="from the ingest's first look to the last change at the client",
    )


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
