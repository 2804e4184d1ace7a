"""`laredo-fanout check`, run on one source and its tables."""

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.support.processes import BIN, PATIENCE_S


def check(
    tmp_path: Path, dsn: str, tables: str, extra: str = ""
) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code and the findings, by what they are about."""
    file = tmp_path / "fanout.conf"
    file.write_text(
        f'state.path = "{tmp_path}/state"\n'
        f'sources {{ pg {{ connection = "{dsn}" }} }}\ntables = [ {tables} ]\n{extra}'
    )
    done = subprocess.run(
        [str(BIN / "laredo-fanout"), "check", "--config", str(file), "--json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, {finding["what"]: finding for finding in json.loads(done.stdout)}


def missing(findings: dict[str, dict[str, Any]]) -> set[str]:
    return {what for what, finding in findings.items() if finding["verdict"] == "missing"}
