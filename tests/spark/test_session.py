"""Without a Java that Spark can run on, one message names the package to install."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from laredo_spark.errors import JavaMissing
from laredo_spark.session import check_java
from tests.support.processes import PATIENCE_S, completed


def java(directory: Path, version: str) -> Path:
    """A Java home that says it is this version."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2021' >&2\n")
    program.chmod(0o755)
    return directory


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match=rf"needs Java 17 .*none found, JAVA_HOME is {tmp_path}"):
        check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match=r"none found, on PATH.*apt-get install openjdk-17"):
        check_java()


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.1"])
def test_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, version)))
    with pytest.raises(JavaMissing, match=rf"\(found {version.partition('.')[0]}, JAVA_HOME"):
        check_java()


@pytest.mark.parametrize("version", ["17.0.1", "21", "25-ea"])
def test_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, version)))
    check_java()


def test_spark_connect_names_its_extra(tmp_path: Path) -> None:
    (tmp_path / "pandas.py").write_text("raise ImportError('not installed')")
    ended = completed(
        [sys.executable, "-m", "laredo_spark", "read", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}", "SPARK_REMOTE": "sc://127.0.0.1:1"},
    )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith("laredo-spark: Spark Connect was asked for")
    assert line.endswith("pip install 'laredo-snapshotter[connect]'")


def test_pandas_isnt_needed(tmp_path: Path) -> None:
    """As where only pyspark and pyarrow are installed; Spark's workers import the same."""
    (tmp_path / "pandas.py").write_text("raise ImportError('not installed')")
    script = (
        "import sys; import laredo_spark, laredo_spark.source\n"
        "from laredo_spark.read.row_shape import RowShape\n"
        "from laredo_spark.options import parse\n"
        "from laredo_model.column import Column\n"
        "shape = RowShape(parse({'path': 'x'}), (Column('id', 'int8', key_ordinal=1),))\n"
        "assert shape.spark_schema().names == ['id']\n"
        "assert not [name for name in sys.modules if name.startswith(('grpc', 'laredo_fanout'))]\n"
    )
    surroundings = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    subprocess.run([sys.executable, "-c", script], env=surroundings, check=True, timeout=PATIENCE_S)
