"""A Spark session on this machine, for all tests of a process that ask for one."""

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_IN_SPARK = (
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.hadoop:hadoop-common",
    "org.apache.parquet:*",
    "org.apache.logging.log4j:*",
    "org.slf4j:*",
    "io.netty:*",
    "software.amazon.awssdk:bundle",
)


def session_of(directory: Path, settings: Mapping[str, str] | None = None) -> "SparkSession":
    """local[2], UTC, without a web page; its files below ``directory``. ``settings``: more."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("laredo tests")
        .config("spark.ui.enabled", "false")
        # On a busy machine a Python worker takes longer than 15 s to come to its socket.
        .config("spark.python.authenticate.socketTimeout", "240s")
        .config("spark.python.daemon.module", "tests.support.spark_daemon")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        # Sessions live for seconds: what the second compiler and more threads that collect
        # garbage would gain is less than they cost.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    )
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def kept_jars(settings: Mapping[str, str]) -> dict[str, str]:
    """``settings`` with JARs of Maven's that are in the virtual environment after the first time.

    Without what they ask for and Spark has, and without the bundle of all of AWS's SDK.
    """
    return {
        **settings,
        "spark.jars.ivy": str(Path(sys.prefix, "ivy")),
        "spark.jars.ivySettings": str(Path(__file__).with_name("ivysettings.xml")),
        "spark.jars.excludes": ",".join(_IN_SPARK),
    }


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """One session for all tests of a process."""
    session = session_of(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
