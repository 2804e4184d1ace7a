"""The C extensions built with AddressSanitizer and UndefinedBehaviorSanitizer, and run.

    python -m tests.fuzz.sanitized DIRECTORY --inputs 500000 --seed 1

builds them below DIRECTORY and starts itself again with the sanitizer's library before all
others: it must be there before Python is. The checks are those of twins.py; what the sanitizers
find ends the program with their report.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import subprocess
import sys
import sysconfig
from collections.abc import Collection
from pathlib import Path

SOURCES = {
    "laredo_fanout.decode._row_scan": Path("laredo_fanout/decode/_row_scan.c"),
    "laredo_fanout.decode._frames": Path("laredo_fanout/decode/_frames.c"),
    "laredo_fanout.wire._repeated": Path("laredo_fanout/wire/_repeated.c"),
    "laredo_fanout.serving._struct_rows": Path("laredo_fanout/serving/_struct_rows.c"),
    "laredo_fanout.store._seals": Path("laredo_fanout/store/_seals.c"),
    "laredo_archive.codec._struct_scan": Path("laredo_archive/codec/_struct_scan.c"),
}
SANITIZERS = "-fsanitize=address,undefined"
COMPILER = str(sysconfig.get_config_var("CC")).split()[0]
ROOT = Path(__file__).parents[2]


def sanitizer_library() -> Path | None:
    """The compiler's libasan, which must be loaded first; None where there is none."""
    try:
        said = subprocess.run(
            [COMPILER, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    library = Path(said.stdout.strip())
    return library.resolve() if library.is_absolute() else None


def build(directory: Path, sources: Path = ROOT, only: Collection[str] = tuple(SOURCES)) -> None:
    """Build ``only`` these extensions, whose sources are below ``sources``, into ``directory``.

    :raises subprocess.CalledProcessError: if the compiler refuses one.
    """
    options = ["-shared", "-fPIC", "-O1", "-g", "-fno-omit-frame-pointer", "-Wall", "-Wextra"]
    options += [SANITIZERS, "-fno-sanitize-recover=all", f"-I{sysconfig.get_path('include')}"]
    for name in only:
        command = [
            COMPILER,
            *options,
            str(sources / SOURCES[name]),
            "-o",
            str(directory / f"{name}.so"),
        ]
        subprocess.run(command, check=True)


def run(
    directory: Path, inputs: int, seed: int, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the checks with the extensions in ``directory``, in a process of its own."""
    return subprocess.run(
        [
            sys.executable,
            "-m",
            __spec__.name,
            str(directory),
            f"--inputs={inputs}",
            f"--seed={seed}",
            "--loaded",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={
            **os.environ,
            "LD_PRELOAD": str(sanitizer_library()),
            # Python's own allocator would hide which bytes are an object's.
            "PYTHONMALLOC": "malloc",
            # The interpreter leaves much allocated when it ends.
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        },
    )


def _load(directory: Path) -> None:
    """Have these extensions in the place of those that are installed."""
    for name in SOURCES:
        spec = importlib.util.spec_from_file_location(name, directory / f"{name}.so")
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])


def _check(inputs: int, seed: int) -> None:
    """Every twin in turn, until so many messages and values were taken."""
    from tests.fuzz.twins import CHECKS

    done = dict.fromkeys(CHECKS, 0)
    while sum(done.values()) < inputs:
        for name, check in CHECKS.items():
            try:
                done[name] += check(random.Random(seed))
            except Exception as failure:
                failure.add_note(f"{name}, seed {seed}")
                raise
        seed += 1
    print(f"{sum(done.values())} inputs held: {done}; the next seed is {seed}")


def main(arguments: list[str]) -> int:
    """The exit code: 0 if all held."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.sanitized")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--inputs", type=int, default=500_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--loaded", action="store_true", help=argparse.SUPPRESS)
    said = parser.parse_args(arguments)
    if said.loaded:
        _load(said.directory)
        _check(said.inputs, said.seed)
        return 0
    said.directory.mkdir(parents=True, exist_ok=True)
    build(said.directory)
    ended = run(said.directory, said.inputs, said.seed)
    print(ended.stdout, ended.stderr, sep="")
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
