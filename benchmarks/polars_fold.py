"""The table folded by polars in one process: ``python -m benchmarks.polars_fold DIRECTORY``.

What somebody without this project would write: base and diffs parsed whole, the last change of
each key taken, everything in memory. Prints a JSON line.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.counting_client import tell
from benchmarks.processes import AnonymousMemory

_ROW: dict[str, Any] = {
    "id": pl.Int64,
    "n": pl.Int32,
    "name": pl.String,
    "note": pl.String,
    "price": pl.String,
    "ratio": pl.Float64,
    "active": pl.Boolean,
    "created": pl.String,
    "updated": pl.String,
    "doc": pl.Struct({"city": pl.String, "tags": pl.List(pl.String)}),
}
_CHANGE: dict[str, Any] = {"action": pl.String, "key": pl.String, "new": pl.Struct(_ROW)}


def folded(directory: Path) -> pl.DataFrame:
    """The rows at the head, typed."""
    base = pl.read_ndjson(next(directory.rglob("snapshot-*.jsonl")), schema=_ROW)
    # In the order of their positions, hexadecimal at the end of the names.
    diffs = sorted(
        directory.rglob("diff-*.jsonl"), key=lambda path: int(path.stem.rpartition("_")[2], 16)
    )
    changes = pl.concat([pl.read_ndjson(diff, schema=_CHANGE) for diff in diffs])
    newest = changes.unique("key", keep="last")
    ids = newest.select(id=pl.col("key").cast(pl.Int64))
    changed = newest.filter(pl.col("action") != "DELETE").select("new").unnest("new")
    rows = pl.concat([base.join(ids, on="id", how="anti"), changed])
    return rows.with_columns(
        pl.col("price").cast(pl.Decimal(12, 2)),
        pl.col("created", "updated").str.to_datetime("%+", time_unit="us", time_zone="UTC"),
    )


if __name__ == "__main__":
    memory = AnonymousMemory(every=0.05)
    memory.watch(os.getpid(), "polars")
    began = time.perf_counter()
    found = folded(Path(sys.argv[1]))
    seconds = time.perf_counter() - began
    memory.stop()
    tell(seconds=seconds, rows=found.height, memory=memory.peaks["polars"])
