"""Clients generated from the .proto alone, that know no extension."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from laredo_model import position
from laredo_model.line import Action
from tests.support.processes import PATIENCE_S
from tests.support.repository import ROOT
from tests.support.server.serving_world import World, line, rows, running

INSERT, UPDATE, DELETE, TRUNCATE = Action

CLIENT = Path(__file__).with_name("standard_client.py")
PROTO = ROOT / "proto" / "laredo" / "replication" / "v1" / "replication.proto"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Code from the .proto with every extension cut out of it."""
    text = re.sub(r"//.*", "", PROTO.read_text())
    text = re.sub(r"\nmessage (Snapshot|Change)Batch \{.*?\n\}\n", "\n", text, flags=re.DOTALL)
    base = "\n".join(each for each in text.splitlines() if not re.search(r"= 1\d\d;", each))
    assert "capabilities" not in base and "Batch" not in base
    folder = tmp_path_factory.mktemp("standard")
    path = folder / "laredo/replication/v1/replication.proto"
    path.parent.mkdir(parents=True)
    path.write_text(base)
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}"]
    command += [f"--python_out={folder}", f"--grpc_python_out={folder}", str(path)]
    subprocess.run(command, check=True)
    return folder


async def start(generated: Path, world: World, *arguments: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, str(CLIENT), world.address, *map(str, arguments),
        env={**os.environ, "PYTHONPATH": str(generated)},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def result(process: asyncio.subprocess.Process) -> dict[str, Any]:
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 0, err.decode()
    return json.loads(out)


async def test_snapshot_and_changes_in_order_without_gaps(generated: Path, tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        given = rows(0, 2000)
        world.writer.publish(given)
        expected = {float(n): json.loads(each) for n, each in enumerate(given)}
        client = await start(generated, world, 99999)
        assert client.stderr is not None
        # Changes from before, during and after its snapshot.
        for number in range(700):
            if number == 350:
                await asyncio.wait_for(client.stderr.readline(), PATIENCE_S)
            changed = line(number % 2500, f"changed {number}", tags={"n": [number, None, True]})
            known = float(number % 2500) in expected
            world.writer.commit((UPDATE if known else INSERT, changed))
            expected[float(number % 2500)] = json.loads(changed)
            if number % 7 == 0:
                gone = sorted(expected)[number % len(expected)]
                world.writer.commit((DELETE, str(int(gone)).encode()))
                del expected[gone]
            if number % 100 == 0:
                await asyncio.sleep(0)
        world.writer.commit((INSERT, line(99999, "last")))
        expected[99999.0] = json.loads(line(99999, "last"))
        saw = await result(client)

        assert saw["mode"] == 1
        assert saw["unknown"] == 0
        first, last = saw["snapshot_sequence"] + 1, saw["sequences"][-1]
        assert saw["sequences"] == list(range(first, last + 1)) and saw["resume_from"] == first
        assert len(saw["sequences"]) >= 350
        assert set(saw["actions"]) == {"INSERT", "UPDATE", "DELETE"}
        assert saw["positions"][-1] == position.text(world.writer.position)
        assert {float(key): row for key, row in saw["rows"].items()} == expected
        assert saw["columns"][0] == {
            "ordinalPosition": 1, "columnName": "id", "dataType": "int8", "notNull": True,
            "isPrimaryKey": True, "primaryKeyOrdinal": 1,
        }  # fmt: skip
