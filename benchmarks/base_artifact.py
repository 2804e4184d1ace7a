"""The base snapshot as the snapshotter writes it: JSONL, sha256, checksum, committed."""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.processes import Program, wait_until
from benchmarks.scenario import Scenario

SUBJECT = "base_artifact"


def run(scenario: Scenario) -> list[Figure]:
    """From the first byte on the disk to the manifest that names the artifact."""
    scenario.ready_server()
    program, archive = scenario.start_writer("snapshotter")
    scenario.memory.watch(program.pid, "laredo-snapshotter")
    try:
        began = _until(program, lambda: _first_byte(archive), "the snapshot's first byte")
        artifact = _until(program, lambda: _base(archive), "the base's commit")
        ended = time.perf_counter()
    finally:
        program.stop()
    entry = artifact["formats"]["jsonl"]
    assert artifact["rows"] == scenario.rows
    limit = _plain_loop(archive / entry["key"], scenario.directory / "limit.jsonl")
    return [
        Figure(
            SUBJECT,
            f"base of {scenario.rows:,} rows, JSONL with sha256 and checksum",
            scenario.rows / (ended - began),
            "rows/s",
            scenario.rows / limit,
            "a loop that hashes and writes the same lines",
            target=300_000,
        )
    ]


def _until(program: Program, condition: Any, what: str) -> Any:
    def checked() -> Any:
        program.check()
        return condition()

    return wait_until(checked, timeout=300, what=what, pause=0.005)


def _first_byte(archive: Path) -> float | None:
    for path in archive.rglob("*"):
        if "manifest" in path.name or not path.is_file():
            continue
        try:
            if path.stat().st_size > 0:
                return time.perf_counter()
        except FileNotFoundError:
            continue
    return None


def _base(archive: Path) -> dict[str, Any] | None:
    for path in archive.rglob("manifest.json"):
        artifacts: list[dict[str, Any]] = json.loads(path.read_bytes())["artifacts"]
        if artifacts:
            return artifacts[0]
    return None


def _plain_loop(source: Path, target: Path) -> float:
    """Seconds for sha256 of the file, md5 of each line, and writing it again."""
    began = time.perf_counter()
    whole, total = hashlib.sha256(), 0
    md5, from_bytes = hashlib.md5, int.from_bytes
    with source.open("rb") as lines, target.open("wb") as copy:
        while chunk := lines.readlines(1 << 19):
            for line in chunk:
                total += from_bytes(md5(line[:-1], usedforsecurity=False).digest(), "big")
            joined = b"".join(chunk)
            whole.update(joined)
            copy.write(joined)
    seconds = time.perf_counter() - began
    target.unlink()
    return seconds
