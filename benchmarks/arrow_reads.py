"""Tables as Arrow beside DuckDB and polars: ``python -m benchmarks.arrow_reads DIRECTORY``.

Of an archive of ``benchmarks.spark_archive``. What is compared takes turns in one process, so a
busy machine is one for both; each line has the median of the ratios. The memory is that of a
process of its own.
"""

import json
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from statistics import median

import duckdb
import polars as pl

from benchmarks.spark_archive import PREFIX
from laredo_archive import TableAtBoundary, open_archive

_ROUNDS = 5
_MEMORY = """
import re, sys
from pathlib import Path
from laredo_archive import open_archive
at = open_archive(sys.argv[1], prefer=sys.argv[2]).at(sys.argv[3] or None)
rows = sum(batch.num_rows for batch in at.batches())
assert rows == at.count()
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1000)
"""
Work = Callable[[], object]


def _timed(work: Work) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def _by_turns(what: str, ours: Work, theirs: Work, limit: str) -> None:
    pairs = [(_timed(ours), _timed(theirs)) for _ in range(_ROUNDS)]
    walls = sorted(own[0] / its[0] for own, its in pairs)
    cpus = sorted(own[1] / its[1] for own, its in pairs)
    own, its = (median(side[0] for side in sides) for sides in zip(*pairs, strict=True))
    own_cpu, its_cpu = (median(side[1] for side in sides) for sides in zip(*pairs, strict=True))
    print(
        f"{what}: {own:.2f} s ({own_cpu:.2f} CPU); {limit}: {its:.2f} s ({its_cpu:.2f} CPU);"
        f" {median(walls):.2f} times, {walls[0]:.2f} to {walls[-1]:.2f}, by CPU {median(cpus):.2f}"
    )


def _compare(directory: Path) -> None:
    manifest = json.loads((directory / PREFIX / "manifest.json").read_text())
    base = next(each for each in manifest["artifacts"] if each["kind"] == "snapshot")
    files = {name: str(directory / entry["key"]) for name, entry in base["formats"].items()}

    def at(prefer: str, as_of: str | None) -> TableAtBoundary:
        return open_archive(directory / PREFIX, prefer=prefer).at(as_of)

    first = base["to_position"]

    def by_duckdb() -> object:
        made = duckdb.sql(f"SELECT * FROM read_parquet('{files['parquet']}')").arrow()
        return made.read_all() if hasattr(made, "read_all") else made

    def by_polars() -> object:
        return pl.read_ndjson(files["jsonl"])

    for what, as_of in (("the base", first), ("with all diffs", None)):
        _by_turns(
            f"parquet, {what}", lambda a=as_of: at("parquet", a).to_arrow(),  # type: ignore[misc]
            by_duckdb, "DuckDB, the base file",
        )  # fmt: skip
        _by_turns(
            f"jsonl, {what}", lambda a=as_of: at("jsonl", a).to_arrow(),  # type: ignore[misc]
            by_polars, "polars.read_ndjson, the base file",
        )  # fmt: skip
    for prefer in ("jsonl", "parquet"):
        for what, as_of in (("the base", first), ("with all diffs", "")):
            command = [sys.executable, "-c", _MEMORY, str(directory / PREFIX), prefer, as_of]
            peak = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            print(f"batches(), {prefer}, {what}: {float(peak):.0f} MB at most")


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("directory", type=Path)
    _compare(parser.parse_args().directory)
