"""A Python program and what it starts, to be stopped and killed together."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress


@contextmanager
def group(
    module: str, *arguments: object, more: Mapping[str, str] | None = None
) -> "Iterator[subprocess.Popen[str]]":
    """The program in a process group with its JVM; none of them is left."""
    with subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        env={**os.environ, **(more or {})},
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
