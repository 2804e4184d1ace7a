"""The code that a client generates from the .proto without our extensions."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

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
