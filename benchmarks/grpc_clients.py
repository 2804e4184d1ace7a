"""500 gRPC clients at 20 commits a second, their generator's CPU apart."""

from benchmarks.figures import Figure
from benchmarks.many_clients import Load, case
from benchmarks.scenario import Scenario

SUBJECT = "grpc"
_CLIENTS, _TARGET_MS = 500, 90.0


def run(scenario: Scenario) -> list[Figure]:
    """p95 from commit to read, one serving process."""
    scenario.stop_server()
    # The load generator tells changes apart by the number of bytes: nothing else may come.
    scenario.start_server("fanout.grpc.workers=1", heartbeat="1h")
    load = Load("grpc_load", scenario.grpc_port, _CLIENTS)
    figures = case(scenario, SUBJECT, load, latency=_TARGET_MS)
    scenario.stop_server()
    return figures
