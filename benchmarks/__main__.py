"""``python -m benchmarks [NAMES]``: all subjects, or those named, over one scenario."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console

from benchmarks import (
    backlog,
    base_artifact,
    base_protocol,
    catchup,
    client,
    connect,
    figures,
    giant_transaction,
    grpc_clients,
    latency,
    memory,
    relay,
    restart,
    s3,
    snapshot,
    spark,
    standby,
    table_copy,
)
from benchmarks.figures import Figure
from benchmarks.scenario import Scenario

# In this order: the copy needs a new server, memory looks back on all the others.
SUBJECTS: dict[str, Callable[[Scenario], list[Figure]]] = {
    module.SUBJECT: module.run
    for module in (
        table_copy,
        snapshot,
        base_protocol,
        base_artifact,
        s3,
        latency,
        grpc_clients,
        connect,
        relay,
        standby,
        backlog,
        catchup,
        client,
        giant_transaction,
        restart,
        spark,
        memory,
    )
}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(SUBJECTS)))
@click.option("--rows", default=1_000_000, show_default=True, help="Rows of the table.")
@click.option("--updates", default=500_000, show_default=True, help="Updates of each backlog.")
@click.option("--seconds", default=15.0, show_default=True, help="Of each latency case.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Where to put the JSON too.")
def main(
    names: tuple[str, ...], rows: int, updates: int, seconds: float, path: Path | None
) -> None:
    """Measure NAMES (default: everything) and show each figure beside its limit."""
    # Wide enough for the table where the output goes to a file.
    console = Console() if sys.stdout.isatty() else Console(width=150)
    settings = {"rows": rows, "updates": updates, "seconds": seconds}
    found: list[Figure] = []
    with Scenario(console, rows=rows, updates=updates, seconds=seconds) as scenario:
        for name, run in SUBJECTS.items():
            if names and name not in names:
                continue
            scenario.say(f"[bold]{name}[/]")
            measured = run(scenario)
            found += measured
            figures.show(measured, console)
    figures.show(found, console)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    for target in (Path(__file__).parent / "results" / f"{stamp}.json", path):
        if target is not None:
            figures.save(found, target, settings)
            console.print(f"written: {target}")


if __name__ == "__main__":
    main()
