"""Options are what docs/spark/tables.md and help() say: all of them, with these defaults."""

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from laredo_spark import options
from laredo_spark.errors import JavaMissing, OptionRefused
from laredo_spark.options import ReadOptions, parse
from laredo_spark.session import check_java
from laredo_spark.sync.sync import given_options
from tests.support.processes import PATIENCE_S, completed

PAGE = Path(__file__).parents[2] / "docs/spark/tables.md"
TABLE = [line for line in (options.__doc__ or "").splitlines() if line.startswith("|")]
OF_FIELD = {"format_id": "format", "max_diffs": "max_diffs_per_trigger"}
"""Fields of options that have another name inside."""


def described() -> dict[str, str]:
    """Each option's default, as the table says it."""
    found = {}
    for line in TABLE[2:]:
        names, _, default = (cell.strip() for cell in line.strip("|").rsplit("|", 2))
        found |= dict.fromkeys(names.split(", "), default)
    return found


def test_the_page_has_the_table_that_help_shows() -> None:
    assert "\n".join(TABLE) in PAGE.read_text()
    assert len(TABLE) > 20


def test_the_table_has_every_option_and_no_other() -> None:
    values = {"path": "x", "format": "jsonl", "mode": "changes", "on_gap": "fail", "also": "lsn"}
    values |= {"addressing": "path", "special_values": "null", "numeric_as": "decimal(9,2)"}
    values |= {"array_dimensions": "a=2", "after": "0/10", "until": "0/10", "as_of": "0/10"}
    flags = ("exact", "lines", "merged", "push_filters", "anonymous", "requester_pays")
    values |= dict.fromkeys(flags, "true")
    for name in described():
        parse({"path": "x", name: values.get(name, "1")})
    inside = {OF_FIELD.get(field.name, field.name) for field in fields(ReadOptions)}
    typing = {"numeric_as", "special_values", "array_dimensions"}
    assert set(described()) == inside - {"after_head", "typing"} | typing


def test_defaults_are_those_of_the_table() -> None:
    found = parse({"path": "x"})
    for name, default in described().items():
        value = getattr(found, {v: k for k, v in OF_FIELD.items()}.get(name, name), None)
        if default in ("true", "false") or default.isdigit():
            assert value is None or str(value).lower() == default, name
    assert (found.typing.numeric_as, found.typing.special) == ("string", "error")
    assert (found.mode, found.on_gap) == (described()["mode"], described()["on_gap"])


@pytest.mark.parametrize("given", [["id"], ("id",), "id"])
def test_a_sync_takes_names_as_read_table_does(given: object) -> None:
    asked = given_options({"path": "-", "key_fields": given, "columns": ["id", "name"]})
    assert (asked["key_fields"], asked["columns"]) == ("id", "id,name")


@pytest.mark.parametrize("name", [*options.OF_CHANGES, "mode", "lines"])
def test_a_sync_takes_no_options_of_changes(name: str) -> None:
    with pytest.raises(
        OptionRefused, match=rf"option {name} = 'x': a sync always reads .* remove the option"
    ):
        given_options({"path": "-", name: "x"})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("archive/users", f"{Path.cwd()}/archive/users"),
        ("file:/data/a%20b", "/data/a b"),
        ("file:///data/users/manifest.json", "/data/users/manifest.json"),
        ("s3://bucket/users/", "s3://bucket/users/"),
    ],
)
def test_a_path_means_the_same_wherever_a_task_runs(given: str, meant: str) -> None:
    assert parse({"path": given}).path == meant
    assert options.as_options({"path": given, "as_of": None}) == {"path": meant}


# Without a Java that Spark can run on, one message names the package to install.


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
