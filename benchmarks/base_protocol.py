"""The base protocol, one message a row, beside grpcio's own limit for such messages."""

from benchmarks import bench_table
from benchmarks.figures import Figure
from benchmarks.scenario import Scenario, told
from benchmarks.snapshot import bare_messages

SUBJECT = "base"
_ROWS = 60_000


def run(scenario: Scenario) -> list[Figure]:
    """The first rows of a snapshot to a client that knows no extension."""
    scenario.ready_server()
    rows = min(_ROWS, scenario.rows)
    with scenario.running(
        "counting_client",
        "base",
        "--server",
        scenario.address,
        "--table",
        bench_table.QUALIFIED,
        "--changes",
        rows,
        what="client, base protocol",
    ) as client:
        began, ended = told(client), told(client)
    return [
        Figure(
            SUBJECT,
            "snapshot over the base protocol",
            rows / (ended["at"] - began["at"]),
            "rows/s",
            bare_messages(scenario, ended["message_bytes"], rows),
            f"grpcio, constant messages of {ended['message_bytes']} bytes, unparsed",
        )
    ]
