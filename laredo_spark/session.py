"""A Spark session for command lines and notebooks, made after a check of the installed Java."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.errors import PySparkImportError
from pyspark.sql import SparkSession

from laredo_spark.errors import ConnectMissing, JavaMissing

OLDEST_JAVA = 17
"""https://spark.apache.org/docs/latest/#downloading"""
_VERSION = re.compile(r'version "(\d+)')
_PATIENCE_S = 60


def session(
    name: str = "laredo", master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The active session, or a new one with filters on the key pushed down.

    ``master``: as Spark's own setting; without it, as spark-submit sets, else all cores here.
    ``settings``: more of Spark's, by their names.

    :raises JavaMissing: if no Java that Spark could run on is found.
    :raises ConnectMissing: if it is one of Spark Connect, and a package for that is missing.
    """
    if not remote(settings or {}):
        check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    builder = builder.config("spark.sql.python.filterPushdown.enabled", "true")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    for setting, value in (settings or {}).items():
        builder = builder.config(setting, value)
    try:
        return builder.getOrCreate()
    except PySparkImportError as missing:
        raise ConnectMissing(str(missing).rstrip(".")) from missing


def remote(settings: Mapping[str, str]) -> bool:
    """True if the session is one of Spark Connect, whose Spark runs elsewhere."""
    return "spark.remote" in settings or "SPARK_REMOTE" in os.environ


def check_java() -> None:
    """Check the version of the Java that Spark would run on.

    :raises JavaMissing: if there is none, or one that is too old.
    """
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else "java"
    where = f"JAVA_HOME is {home}" if home else "on PATH"
    try:
        answer = subprocess.run(
            [command, "-version"],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        raise JavaMissing(f"none found, {where}") from None
    found = _VERSION.search(answer.stderr + answer.stdout)
    if found is None:
        raise JavaMissing(f"{command} -version names no version, {where}")
    if int(found[1]) < OLDEST_JAVA:
        raise JavaMissing(f"found {found[1]}, {where}")
