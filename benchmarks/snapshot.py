"""A snapshot of the whole table to one batch client."""

from benchmarks import bench_table
from benchmarks.figures import Figure
from benchmarks.scenario import Scenario, told

SUBJECT = "snapshot"
_MESSAGE_BYTES = 540_000  # as the server's batches


def run(scenario: Scenario) -> list[Figure]:
    """The best of three, as for its limit: both are disturbed by the machine, never helped."""
    scenario.ready_server()
    rates, size = [], 0
    for _ in range(3):
        with scenario.running(
            "counting_client",
            "snapshot",
            "--server",
            scenario.address,
            "--table",
            bench_table.QUALIFIED,
            what="client, counting",
        ) as client:
            began, ended = told(client), told(client)
        assert ended["rows"] == scenario.rows
        size = ended["bytes"]
        rates.append(ended["rows"] / (ended["at"] - began["at"]))
    messages = max(1, size // _MESSAGE_BYTES)
    limit = bare_messages(scenario, _MESSAGE_BYTES, messages) * _MESSAGE_BYTES
    return [
        Figure(
            SUBJECT,
            f"{scenario.rows:,} rows to one batch client",
            max(rates),
            "rows/s",
            limit / (size / scenario.rows),
            "grpcio sending one constant message of this size, unparsed",
            target=500_000,
        )
    ]


def bare_messages(scenario: Scenario, size: int, messages: int) -> float:
    """Messages/s of ``size`` bytes that grpcio takes from a server that does nothing else."""
    rates: list[float] = []
    with scenario.running(
        "counting_client", "bare_server", "--changes", size, what="bare grpcio"
    ) as server:
        port = told(server)["port"]
        for _ in range(3):
            arguments = ("bare", "--server", f"127.0.0.1:{port}", "--changes", messages)
            with scenario.running("counting_client", *arguments, what="bare grpcio") as client:
                began, ended = told(client), told(client)
            rates.append(messages / (ended["at"] - began["at"]))
    return max(rates)
