"""Spark's own programs as processes: a Connect server, a master and its workers."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from tests.support.processes import PATIENCE_S, free_port, wait_until

HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).parents[2]
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
QUIET = ("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.memory=1g")


def surroundings(**more: str) -> dict[str, str]:
    """The environment of a program of Spark's."""
    return {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **more,
    }


@contextmanager
def running(
    command: Sequence[str], log: Path, ready: str, environment: Mapping[str, str]
) -> Iterator[re.Match[str]]:
    """A program, from the moment its log says ``ready``, a pattern."""
    with log.open("wb") as written:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=written, stderr=written, env=environment
        )

    def found() -> re.Match[str] | None:
        text = log.read_text(errors="replace")
        assert process.poll() is None, f"it ended:\n{text[-4000:]}"
        return re.search(ready, text)

    try:
        yield wait_until(found, f"{log.name} says {ready}")
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """The address of a Spark Connect server that finds this project's data source by itself."""
    port = free_port()
    command = [
        *(str(HOME / "bin" / "spark-submit"), "--master", "local[2]", "--class", CONNECT),
        *("--conf", f"spark.connect.grpc.binding.port={port}"),
        *("--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
        *("--conf", f"spark.local.dir={directory / 'local'}"),
        *("--conf", f"spark.sql.warehouse.dir={directory / 'warehouse'}"),
        *QUIET,
        "spark-internal",
    ]
    environment = surroundings(PYTHONPATH=str(ROOT))
    with running(command, directory / "connect.log", "server started at", environment):
        yield f"sc://127.0.0.1:{port}"


@contextmanager
def standalone_cluster(directory: Path, workers: int) -> Iterator[str]:
    """The address of a master with so many workers of one core; none of them has this project."""
    environment = surroundings(SPARK_DAEMON_MEMORY="256m", SPARK_WORKER_DIR=str(directory / "work"))
    environment.pop("PYTHONPATH", None)
    spark_class = str(HOME / "bin" / "spark-class")
    here = ("--host", "127.0.0.1", "--webui-port", "0")
    master = [spark_class, "org.apache.spark.deploy.master.Master", *here, "--port", "0"]
    starting = r"Starting Spark master at (spark://\S+)"
    with running(master, directory / "master.log", starting, environment) as found:
        address = found[1]
        worker = [
            *(spark_class, "org.apache.spark.deploy.worker.Worker", *here),
            *("--cores", "1", "--memory", "600m", address),
        ]
        registered = "Successfully registered with master"
        with ExitStack() as started:
            for number in range(workers):
                log = directory / f"worker-{number}.log"
                started.enter_context(running(worker, log, registered, environment))
            yield address
