"""The whole road, random transactions and kill -9 on the way: the archive equals PostgreSQL.

Every boundary of every archive is compared with what PostgreSQL held at that
position, known without our code (see ``oracle.py``).
"""

import json
import os
import random
import time
from pathlib import Path
from typing import Any

from tests.end_to_end.fanout import SNAPSHOTTER, SNAPSHOTTER_TABLE, fanout
from tests.end_to_end.workload import TABLES, Table, Writer
from tests.support import drawn
from tests.support.archive import command_line
from tests.support.oracle import Oracle, assert_same, boundaries
from tests.support.postgres import Database
from tests.support.processes import Program, free_port, wait_until

SECONDS = float(os.environ.get("LAREDO_TEST_SECONDS", "20"))


class Pipeline:
    """Server and writer over the workload's tables, below one directory."""

    def __init__(self, directory: Path, database: Database, compression: str) -> None:
        self.archive = directory / "archive"
        self.archive.mkdir()
        grpc_port, snapshotter_http = free_port(), free_port()
        self.server = fanout(directory, database, grpc_port)
        snapshotter = directory / "snapshotter.conf"
        snapshotter.write_text(
            SNAPSHOTTER.format(
                grpc_port=grpc_port,
                http_port=snapshotter_http,
                archive=self.archive,
                compression=compression,
                tables=", ".join(SNAPSHOTTER_TABLE.format(table=table.name) for table in TABLES),
            )
        )
        self.writer = Program(
            "laredo-snapshotter", snapshotter, snapshotter_http, log=directory / "snapshotter.log"
        )

    def head(self, table: Table) -> int:
        """Last position of the table's archive, quiet or not; 0 before the first artifact."""
        read = self._manifest(table)
        texts = [read.get("head_position"), read.get("seen_position")]
        return max((_integer(text) for text in texts if text), default=0)

    def artifacts(self, table: Table) -> list[Any]:
        """Artifacts of the table's manifest."""
        return self._manifest(table).get("artifacts", [])

    def _manifest(self, table: Table) -> dict[str, Any]:
        manifest = self.archive / table.name / "manifest.json"
        return json.loads(manifest.read_bytes()) if manifest.exists() else {}


def _integer(position: str) -> int:
    high, low = position.split("/")
    return int(high, 16) << 32 | int(low, 16)


@drawn.seeds(0, 2)
def test_every_boundary_equals_postgresql_whatever_was_killed(
    seed: int, tmp_path: Path, database: Database
) -> None:
    rng = random.Random(seed)
    compression = ("zstd", "none")[seed % 2]
    pipeline = Pipeline(tmp_path, database, compression)
    with database.connect() as owner:
        for table in TABLES:
            owner.execute(table.ddl)
    oracle = Oracle(database.dsn, f"oracle_{database.name}")
    for table in TABLES:
        oracle.start(table.name)
    writers = [
        Writer(database.dsn, table, oracle, seed + number, pause=0.03)
        for number, table in enumerate(TABLES)
    ]
    for writer in writers:
        writer.start()
    with pipeline.server, pipeline.writer:
        _kill_at_random(rng, pipeline)
        for table in TABLES:
            wait_until(
                lambda table=table: len(pipeline.artifacts(table)) > 10,  # type: ignore[misc]
                f"some artifacts of {table.name}",
            )
        for writer in writers:
            writer.finish()
        pipeline.server.wait_ready()
        pipeline.writer.wait_ready()
        _wait_for_the_last_rows(pipeline, oracle, writers)
        assert pipeline.writer.stop() == 0, pipeline.writer.tail()
        assert pipeline.server.stop() == 0, pipeline.server.tail()
    assert all(writer.committed > 50 for writer in writers)
    for table in TABLES:
        _compare(pipeline, oracle, table)
    artifacts = [artifact for table in TABLES for artifact in pipeline.artifacts(table)]
    assert any("parts" in artifact for artifact in artifacts), "nothing was merged"
    suffix = {"zstd": ".zst", "none": ""}[compression]
    assert all(artifact["formats"].keys() >= {f"jsonl{suffix}"} for artifact in artifacts)
    oracle.close()


def _kill_at_random(rng: random.Random, pipeline: Pipeline) -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        # How long each life lasts is what is random here, from in mid-copy to well settled.
        time.sleep(rng.choice([0.5, 4, 10]) * rng.random())
        victim = rng.choice([pipeline.server, pipeline.writer])
        if victim.is_running():
            victim.kill()
        victim.start()


def _wait_for_the_last_rows(pipeline: Pipeline, oracle: Oracle, writers: list[Writer]) -> None:
    last = oracle.last_commit()
    for table in TABLES:
        wait_until(
            lambda table=table: pipeline.head(table) >= last,  # type: ignore[misc]
            f"{table.name}'s archive reaches the last commit {last:X}\n{pipeline.writer.tail()}",
        )


def _compare(pipeline: Pipeline, oracle: Oracle, table: Table) -> None:
    found = boundaries(pipeline.archive / table.name, table.key_fields)
    assert len(found) > 5, f"{table.name}: only {len(found)} artifacts\n{pipeline.writer.tail()}"
    positions = [position for position, _ in found]
    assert positions == sorted(positions)
    for position, lines in found:
        assert_same(oracle, table.name, position, lines)
    verified = command_line.run("verify", str(pipeline.archive / table.name))
    assert verified.returncode == 0, verified.stdout + verified.stderr
