"""From commit to the callback of a client behind two relays, beside that of a direct one."""

from contextlib import ExitStack

from benchmarks import latency
from benchmarks.bench_table import NAME
from benchmarks.figures import Figure
from benchmarks.processes import SCRIPTS, Program, free_port, get_json, wait_until
from benchmarks.scenario import Scenario, percentile

SUBJECT = "relay"
_MOST_TIMES_DIRECT = 2.5


def run(scenario: Scenario) -> list[Figure]:
    """One client at the server, then one at the second of two relays in a row."""
    scenario.ready_server()
    direct = latency.of_clients(scenario, scenario.address, 1)
    with ExitStack() as stack:
        address = scenario.address
        for number in (1, 2):
            address = _relay(scenario, stack, number, address)
        behind = latency.of_clients(scenario, address, 1)
    half = percentile(behind, 0.5)
    return [
        Figure(
            SUBJECT,
            "commit to callback behind two relays, p50",
            half,
            "ms",
            percentile(direct, 0.5),
            "a client of the server itself",
            target=_MOST_TIMES_DIRECT,
            target_is_ratio=True,
            less_is_better=True,
            note=f"p95 {percentile(behind, 0.95):.1f}, direct {percentile(direct, 0.95):.1f} ms",
        )
    ]


def _relay(scenario: Scenario, stack: ExitStack, number: int, upstream: str) -> str:
    """Start a relay of the server at ``upstream``; its address, once it has the table."""
    grpc, http = free_port(), free_port()
    config = scenario.directory / f"relay-{number}.conf"
    config.write_text(
        f"""
        state {{ path = "{scenario.directory / f"relay-{number}"}" }}
        sources {{ up {{ type = fanout, server = "{upstream}" }} }}
        fanout {{ grpc {{ host = "127.0.0.1", port = {grpc} }}, drain_grace = 2s }}
        http {{ host = "127.0.0.1", port = {http} }}
        tables = [ {{ source = up, schema = public, table = {NAME}
                      targets = [ {{ type = replication-fanout }} ] }} ]
        """
    )
    command = [str(SCRIPTS / "laredo-fanout"), "--config", str(config)]
    relay = Program(command, scenario.directory / f"relay-{number}.log")
    stack.callback(relay.stop)

    def ready() -> bool:
        relay.check()
        found = get_json(f"http://127.0.0.1:{http}/status")
        return found is not None and bool(found["ready"])

    wait_until(ready, timeout=40, what=f"the readiness of relay {number}")
    return f"127.0.0.1:{grpc}"
