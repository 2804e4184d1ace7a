"""A real Prometheus that scrapes the test's programs, with the project's own alerts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from docs.alert_tables import RULES
from tests.support.processes import completed, free_port, wait_until
from tests.support.repository import ROOT

PROGRAMS = Path(os.environ.get("LAREDO_TEST_PROMETHEUS", ROOT / "build/prometheus/usr/bin"))
DASHBOARDS = sorted((ROOT / "examples" / "grafana").glob("*.json"))
_OFTEN = "200ms"


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool on a file."""
    command = [PROGRAMS / "promtool", *arguments]
    return completed(command, timeout=240)


_FORECAST = "LaredoDiskNearlyFull"


@dataclass
class Prometheus:
    """One that runs."""

    address: str

    def ask(self, path: str, **parameters: str) -> Any:
        """The answer's data."""
        answer = httpx.get(f"{self.address}/api/v1/{path}", params=parameters, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def firing(self) -> dict[str, str]:
        """The alerts that fire, with what each says."""
        return {
            alert["labels"]["alertname"]: alert["annotations"]["summary"]
            for alert in self.ask("alerts")["alerts"]
            if alert["state"] == "firing"
        }

    def fires(self, alert: str) -> str:
        """Wait until it does; what it says."""
        return str(wait_until(lambda: self.firing().get(alert), f"{alert} fires"))

    def is_quiet(self) -> None:
        """Wait until nothing fires: a busy machine misses a scrape.

        Whether the disk will be full in hours depends on whatever else writes to it.
        """
        wait_until(lambda: not self.firing().keys() - {_FORECAST}, "nothing fires")

    def is_over(self, alert: str) -> None:
        """Wait until it doesn't fire any more."""
        wait_until(lambda: alert not in self.firing(), f"{alert} is over")

    def scraped(self, job: str) -> None:
        """Wait until the job answers, as far as Prometheus knows."""
        query = f'up{{job="{job}"}} == 1'
        wait_until(lambda: self.ask("query", query=query)["result"], f"{job} is scraped")


@contextmanager
def watching(directory: Path, **jobs: str) -> Iterator[Prometheus]:
    """Prometheus over these jobs' addresses (``_`` in a job's name is ``-``).

    Its alerts are the project's; they wait for nothing (``for``), as nobody waits for a test.
    """
    directory.mkdir()
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    (directory / "rules.yml").write_text(yaml.safe_dump(rules))
    scraped = [
        {
            "job_name": job.replace("_", "-"),
            "static_configs": [{"targets": [address.partition("//")[2]]}],
        }
        for job, address in jobs.items()
    ]
    config = {
        "global": {"scrape_interval": _OFTEN, "evaluation_interval": _OFTEN},
        "rule_files": ["rules.yml"],
        "scrape_configs": scraped,
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                PROGRAMS / "prometheus",
                f"--config.file={directory}/prometheus.yml",
                f"--storage.tsdb.path={directory}/data",
                f"--web.listen-address={address}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        prometheus = Prometheus(f"http://{address}")
        wait_until(lambda: _answers(prometheus, process, directory), "Prometheus is ready")
        for job in jobs:
            prometheus.scraped(job.replace("_", "-"))
        yield prometheus
    finally:
        process.terminate()
        process.wait(60)


def _answers(prometheus: Prometheus, process: subprocess.Popen[bytes], directory: Path) -> bool:
    assert process.poll() is None, (directory / "log").read_text()
    try:
        return httpx.get(f"{prometheus.address}/-/ready", timeout=60).status_code == 200
    except httpx.TransportError:
        return False
