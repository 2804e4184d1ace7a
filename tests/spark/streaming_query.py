"""A streaming query as a process of its own, to be killed: it appends changes to Parquet files."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.processes import PATIENCE_S, wait_until


class Query:
    """The query, with its JVM: ``archive``'s changes to the files in ``directory``/rows.

    ``once``: it ends when it has what is there now. Its progress is in ``directory``/checkpoint,
    so another one with the same directory goes on where this one was.
    """

    def __init__(self, archive: Path, directory: Path, *, once: bool = False, **options: object):
        self._archive = archive
        self._directory = directory
        self._arguments = ["once" if once else "for ever"]
        self._arguments += [f"{name}={value}" for name, value in options.items()]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Query":
        self._directory.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "tests.spark.streaming_query"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, self._archive, self._directory, *self._arguments],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        """kill -9 of driver, JVM and all."""
        if self._running.poll() is None:
            os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()

    @property
    def batches(self) -> int:
        """Number of batches that were finished, of all runs."""
        return len(list((self._directory / "checkpoint" / "commits").glob("[0-9]*")))

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        """Until it is true of the running query."""

        def holds() -> bool:
            assert self._running.poll() is None, self.log
            return bool(condition())

        wait_until(holds, what)

    def wait(self) -> int:
        """Until it ends by itself; its status."""
        return self._running.wait(PATIENCE_S)

    @property
    def log(self) -> str:
        """The end of what it wrote."""
        return self._log.read_text(errors="replace")[-6000:]

    @property
    def _log(self) -> Path:
        return self._directory / "query.log"

    @property
    def _running(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "the query was not started"
        return self._process


def main(archive: str, directory: str, how: str, *options: str) -> None:
    """The query's process."""
    from laredo_spark import register
    from tests.support.spark import session_of

    spark = session_of(Path(directory, "spark"))
    register(spark)
    given = dict(option.split("=", 1) for option in options)
    changes = spark.readStream.format("laredo").options(mode="changes", **given).load(archive)
    writer = changes.writeStream.format("parquet")
    writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
    writer = (
        writer.trigger(availableNow=True)
        if how == "once"
        else writer.trigger(processingTime="100 milliseconds")
    )
    writer.start(f"{directory}/rows").awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
