"""`laredo-fanout check`, run on one source and its tables."""

import json
from pathlib import Path
from typing import Any

from tests.support import processes


def check(
    tmp_path: Path, dsn: str, tables: str, extra: str = ""
) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code and the findings, by what they are about."""
    file = tmp_path / "fanout.conf"
    file.write_text(
        f'state.path = "{tmp_path}/state"\n'
        f'sources {{ pg {{ connection = "{dsn}" }} }}\ntables = [ {tables} ]\n{extra}'
    )
    done = processes.run("laredo-fanout", "check", "--config", file, "--json")
    assert done.stdout, done.stderr
    return done.returncode, {finding["what"]: finding for finding in json.loads(done.stdout)}


def missing(findings: dict[str, dict[str, Any]]) -> set[str]:
    return {what for what, finding in findings.items() if finding["verdict"] == "missing"}
