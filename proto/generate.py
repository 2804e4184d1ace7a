"""Generate the protobuf code of both contracts: ``python -m proto.generate [OUTPUT_ROOT]``.

Each package owns its contract's code, so each .proto is compiled under the
import path of that package; tests/test_generated_code.py holds it fresh.
"""

import sys
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
CONTRACTS = (
    ("proto/laredo/replication/v1", "laredo_fanout/wire", "replication.proto", True),
    ("proto/laredo/snapshotter/v1", "laredo_archive/wire", "artifact.proto", False),
)


def generate(output_root: Path) -> list[Path]:
    """Write the generated modules below ``output_root``; returns their paths, relative to it.

    :raises RuntimeError: if protoc refuses a .proto file.
    """
    for source, package, name, has_service in CONTRACTS:
        (output_root / package).mkdir(parents=True, exist_ok=True)
        bundled = Path(protoc.__file__).parent / "_proto"
        arguments = [
            "protoc",
            f"-I{package}={ROOT / source}",
            f"-I{bundled}",
            f"--python_out={output_root}",
            f"--pyi_out={output_root}",
        ]
        if has_service:
            arguments.append(f"--grpc_python_out={output_root}")
        if protoc.main([*arguments, f"{package}/{name}"]) != 0:
            raise RuntimeError(f"protoc refused {source}/{name}; its message is above")
    return sorted(path.relative_to(output_root) for path in output_root.rglob("*_pb2*.py*"))


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
