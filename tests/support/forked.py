"""The programs as forks of a process that has imported them: started without the imports' second.

A fork is a process as any other: it has its own pid, is killed and stopped by signals, and runs
the console script's function with the script's arguments. tests/install runs the scripts.
"""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

SCRIPTS = {
    script.name: script
    for script in entry_points(group="console_scripts")
    if script.name.startswith("laredo-")
}
PRELOADED = [
    "laredo_fanout.cli",
    "laredo_fanout.app.server",
    "laredo_snapshotter.cli",
    "laredo_archive.cli",
    "boto3",
]


def forking() -> ForkServerContext:
    """Context whose processes are such forks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _run(
    script: str,
    arguments: Sequence[str],
    output: tuple[Path, Path],
    environment: Mapping[str, str],
    directory: Path,
) -> None:
    # The garbage collector would copy every page that is shared with the fork's parent.
    gc.freeze()
    os.chdir(directory)
    for descriptor, path in enumerate(output, 1):
        with path.open("ab") as file:
            os.dup2(file.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [script, *arguments]
    SCRIPTS[script].load()()


class Forked:
    """A program as a fork, with the part of Popen's interface that tests use."""

    def __init__(
        self,
        script: str,
        arguments: Sequence[str],
        stdout: Path,
        stderr: Path | None = None,
        environment: Mapping[str, str] | None = None,
        *,
        directory: Path | None = None,
    ) -> None:
        variables = dict(os.environ if environment is None else environment)
        self._process: ForkServerProcess = forking().Process(
            target=_run,
            args=(
                script,
                arguments,
                (stdout, stderr or stdout),
                variables,
                directory or Path.cwd(),
            ),
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """The exit code, or None while it runs; -N if signal N has ended it."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it ends; its exit code.

        :raises subprocess.TimeoutExpired: if it runs for longer than ``timeout`` seconds.
        """
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(str(self._process.name), timeout or 0.0)
        return code

    def send_signal(self, how: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, how)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
