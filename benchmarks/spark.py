"""Spark: the table read with all its diffs, beside what Spark and polars do with the same files.

``python -m benchmarks.spark DIRECTORY --rows 5000000 --diffs 0 200`` shows how time and memory grow
with rows and diffs, of an archive in DIRECTORY that is written first and stays there.
"""

import json
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import spark_archive
from benchmarks.figures import Figure
from benchmarks.scenario import Scenario, told
from benchmarks.spark_reads import CORES

SUBJECT = "spark"
DIFFS = 200
CHANGES = 500_000
_ROUNDS = 3
_MEGABYTE = 1_000_000
_MOST_OF_JSON = 1.5
_MOST_OF_A_READ = 0.1
_MOST_OF_TWO_COLUMNS = 0.45
Facts = dict[str, Any]


def run(scenario: Scenario) -> list[Figure]:
    """All on one archive; every reading in a process of its own, what is compared in turns."""
    directory = scenario.directory / "spark"
    scenario.say(f"writing an archive of {scenario.rows:,} rows and {DIFFS} diffs")
    sizes = ("--rows", scenario.rows, "--diffs", DIFFS, "--changes", CHANGES)
    rows = _told(scenario, "spark_archive", directory, *sizes)["rows"]
    archive = directory / spark_archive.PREFIX
    figures = _jsonl(scenario, archive, rows)
    for format_ in ("protobuf", "parquet"):
        figures += _other(scenario, archive, rows, format_)
    return figures


def _jsonl(scenario: Scenario, archive: Path, rows: int) -> list[Figure]:
    ours, plain = [], []
    for number in range(1, _ROUNDS + 1):
        scenario.say(f"jsonl, round {number} of {_ROUNDS}")
        ours.append(_read(scenario, archive, "table"))
        plain.append(_read(scenario, archive, "plain_json"))
    found = _read(scenario, archive, "lookup")
    polars = _told(scenario, "polars_fold", archive)
    if polars["rows"] != rows:
        raise RuntimeError(f"polars has {polars['rows']} rows, the archive {rows}")
    return [
        _beside_json("first in its process", "seconds", ours, plain),
        _beside_json("again", "again", ours, plain),
        _lookup("first in its process", "seconds", found, ours),
        _lookup("again", "again", found, ours),
        Figure(
            SUBJECT,
            f"read_table of jsonl, {DIFFS} diffs folded",
            rows / _median(ours, "again"),
            "rows/s",
            rows / polars["seconds"],
            "polars folding the same files in one process, jsonb as a struct",
            note=f"polars took {polars['memory'] / _MEGABYTE:,.0f} MB",
        ),
        *_two_columns(scenario, archive, "jsonl"),
        _memory("jsonl", ours),
    ]


def _beside_json(when: str, which: str, ours: list[Facts], plain: list[Facts]) -> Figure:
    ratios = sorted(our[which] / its[which] for our, its in zip(ours, plain, strict=True))
    return Figure(
        SUBJECT,
        f"read_table of jsonl, {DIFFS} diffs folded, {when}",
        _median(ours, which),
        "s",
        _median(plain, which),
        "spark.read.json of base and diffs with their schemas, nothing folded",
        target=_MOST_OF_JSON,
        target_is_ratio=True,
        less_is_better=True,
        note=f"ratios {ratios[0]:.2f} to {ratios[-1]:.2f}",
    )


def _lookup(when: str, which: str, found: Facts, ours: list[Facts]) -> Figure:
    return Figure(
        SUBJECT,
        f"one key, where id = ..., {when}",
        found[which],
        "s",
        _median(ours, which),
        "read_table of all",
        target=_MOST_OF_A_READ,
        target_is_ratio=True,
        less_is_better=True,
    )


def _other(scenario: Scenario, archive: Path, rows: int, format_: str) -> list[Figure]:
    scenario.say(format_)
    ours = _read(scenario, archive, "table", "--format", format_)
    limit: dict[str, Any] = {}
    if format_ == "parquet":
        plain = _read(scenario, archive, "plain_parquet")
        limit = {
            "limit": scenario.rows / plain["again"],
            "limit_of": "spark.read.parquet of the base alone",
        }
    speed = Figure(
        SUBJECT,
        f"read_table of {format_}, {DIFFS} diffs folded",
        rows / ours["again"],
        "rows/s",
        note=f"{ours['seconds']:.1f} s first in its process, {ours['again']:.1f} s again",
        **limit,
    )
    return [speed, *_two_columns(scenario, archive, format_), _memory(format_, [ours])]


def _two_columns(scenario: Scenario, archive: Path, format_: str) -> list[Figure]:
    found = _read(scenario, archive, "two_columns", "--format", format_)
    return [
        Figure(
            SUBJECT,
            f"two columns of ten of {format_}, {what}",
            found[f"{which}two"],
            "s",
            found[f"{which}all"],
            "read_table of all ten, by turns",
            target=_MOST_OF_TWO_COLUMNS,
            target_is_ratio=True,
            less_is_better=True,
        )
        for which, what in (("base_", "the base alone"), ("", f"{DIFFS} diffs folded"))
    ]


def _memory(format_: str, facts: list[Facts]) -> Figure:
    def most(which: str) -> float:
        return float(max(fact[which] for fact in facts)) / _MEGABYTE

    return Figure(
        SUBJECT,
        f"anonymous memory of the Python workers, {format_}, all of them",
        most("workers"),
        "MB",
        note=f"{CORES} tasks at a time; the largest worker {most('worker'):,.0f} MB,"
        f" the driver's JVM {most('jvm'):,.0f} MB",
    )


def _read(scenario: Scenario, archive: Path, *arguments: object) -> Facts:
    what, *others = arguments
    return _told(scenario, "spark_reads", what, archive, *others)


def _told(scenario: Scenario, module: str, *arguments: object) -> Facts:
    with scenario.running(module, *arguments, what=f"{SUBJECT}: {module}") as process:
        return told(process)


def growth(asked: Namespace) -> None:
    """Print a line for each number of diffs and each way to read; "again" is a second read."""
    if not (asked.directory / spark_archive.PREFIX).exists():
        sizes = {"rows": asked.rows, "diffs": max(asked.diffs), "churn": asked.churn}
        sizes |= {"changes": asked.changes * max(asked.diffs), "value-bytes": asked.value_bytes}
        given = [f"--{name}={value}" for name, value in sizes.items()]
        formats = ("--formats", "jsonl", "parquet", "--diff-formats", "jsonl")
        _printed("spark_archive", asked.directory, *given, *formats)
    archive = asked.directory / spark_archive.PREFIX
    ways = [("base_json",), ("plain_parquet",)]
    for diffs in asked.diffs:
        as_of = spark_archive.boundary(diffs)
        ways += [("table", "--as-of", as_of, "--format", name) for name in ("jsonl", "parquet")]
    for what, *others in ways:
        found = _printed("spark_reads", what, archive, *others)
        memory = ", ".join(
            f"{name} {found[name] / _MEGABYTE:,.0f} MB" for name in ("worker", "jvm", "tree")
        )
        print(
            f"{asked.rows:,} rows, {' '.join((what, *others))}: {found['seconds']:.2f} s,"
            f" again {found['again']:.2f} s ({found['cpu']:.1f} s of CPU); {memory}",
            flush=True,
        )


def _printed(module: str, *arguments: object) -> Facts:
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    found: Facts = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


def _median(facts: list[Facts], which: str) -> float:
    return float(median(fact[which] for fact in facts))


def _arguments() -> Namespace:
    parser = ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--diffs", type=int, nargs="+", default=[0, DIFFS])
    parser.add_argument("--changes", type=int, default=CHANGES // DIFFS, help="in each diff")
    parser.add_argument("--churn", type=float, default=1.0, help="the share of keys that change")
    parser.add_argument("--value-bytes", type=int, default=0, help="length of a text in each row")
    return parser.parse_args()


if __name__ == "__main__":
    growth(_arguments())
