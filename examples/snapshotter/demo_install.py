"""Installation of the demo into a virtual environment of its own, with a line of progress."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOOK_S = 0.2
WIDTH = 79


def main() -> int:
    """The exit code: 0 if all is installed."""
    directory = Path(sys.argv[1])
    began = time.monotonic()
    directory.mkdir(exist_ok=True)
    log = directory / "install.log"
    python = str(directory / "bin" / "python")
    # Python compiles what it imports; most of what is installed is never imported.
    pip = (python, "-m", "pip", "install", "--no-compile", "--progress-bar", "off")
    for command in (
        (sys.executable, "-m", "venv", str(directory)),
        (*pip, "--editable", f"{ROOT}[embedded]"),
    ):
        if not _is_done(command, log, directory, began):
            print(log.read_text(), file=sys.stderr)
            return 1
    _show(f"installed the demo into {directory} in {time.monotonic() - began:.0f} s\n")
    return 0


def _is_done(command: Sequence[str], log: Path, directory: Path, began: float) -> bool:
    """Run a command with its output in the log; True if it has succeeded."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as output:
        running = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    while running.poll() is None:
        if sys.stdout.isatty():
            elapsed = time.monotonic() - began
            _show(f"installing the demo into {directory}: {elapsed:.0f} s, {_step(log)}")
        time.sleep(LOOK_S)
    return running.returncode == 0


def _step(log: Path) -> str:
    """The step that pip's log ends with, in words."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    packages = [line.split()[1] for line in lines if line.startswith("Collecting ")]
    if any(line.startswith("Installing collected packages") for line in lines):
        return f"unpacking {len(packages)} packages"
    if any(line.startswith("Building editable") for line in lines):
        return "compiling C extensions"
    if packages:
        return f"package {len(packages)}: {packages[-1]}"
    return "preparing"


def _show(text: str) -> None:
    """Replace the line, on a terminal."""
    print(f"\r\x1b[K{text[:WIDTH]}" if sys.stdout.isatty() else text, end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
