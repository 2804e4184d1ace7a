"""The readers as Spark's Python workers call them, in the test's own process: quick to ask."""

import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it
from pyspark.sql.datasource import Filter

from laredo_spark.source import LaredoDataSource
from tests.support.archive.building import State, row, state

Rows = list[dict[str, Any]]


class Reading:
    """One DataFrame's source: its schema as when it was made, and what each action reads."""

    def __init__(self, archive: Path | str, **given: object) -> None:
        texts = {name: str(value) for name, value in given.items()}
        self.source = LaredoDataSource({"path": str(archive), **texts})
        self.schema = self.source.schema()
        self.source = pickle.loads(cloudpickle.dumps(self.source))

    def partitions(self, filters: list[Filter] | None = None) -> tuple[Any, list[Any]]:
        reader = self.source.reader(self.schema)
        if filters is not None:
            assert list(reader.pushFilters(filters)) == filters
        planned = list(reader.partitions())
        return reader, [pickle.loads(cloudpickle.dumps(part)) for part in planned]

    def batches(self, filters: list[Filter] | None = None) -> Iterator[pa.RecordBatch]:
        reader, partitions = self.partitions(filters)
        for partition in partitions:
            yield from reader.read(partition)

    def rows(self, filters: list[Filter] | None = None) -> Rows:
        return [line for batch in self.batches(filters) for line in batch.to_pylist()]

    def ids(self, filters: list[Filter] | None = None) -> list[int]:
        return sorted(line["id"] for line in self.rows(filters))


def together(frames: Mapping[str, DataFrame]) -> dict[str, list[Row]]:
    """The rows of several reads, in one job."""
    marked = [frame.withColumn("read", F.lit(name)) for name, frame in frames.items()]
    found: dict[str, list[Row]] = {name: [] for name in frames}
    for each in reduce(DataFrame.unionByName, marked).collect():
        found[each.read].append(each)
    return found


def names(rows: dict[int, str]) -> State:
    """A table's lines, by key."""
    return state(*(row(number, name, '{"a": [1]}') for number, name in rows.items()))


def manifest_of(archive: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest by hand."""
    path = archive / "manifest.json"
    described = json.loads(path.read_text())
    change(described)
    path.write_text(json.dumps(described))
