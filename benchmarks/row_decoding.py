"""Rows a second of CPU that one process makes Arrow columns of, without Spark.

``python -m benchmarks.row_decoding DIRECTORY``, the manifest's, of ``benchmarks.spark_archive``.
"""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from benchmarks.spark_archive import BASE_FORMATS
from laredo_archive.reader import Archive
from laredo_model import position as positions
from laredo_spark.options import parse
from laredo_spark.read.table_read import TableRead, TableReader

_ROUNDS = 3


def rows_and_seconds(table: TableRead) -> tuple[int, float]:
    """The number of rows, and the CPU seconds of reading all of its ranges."""
    reader = TableReader(table.asked, table.spark_schema())
    began = time.process_time()
    rows = 0
    for partition in reader.partitions():
        rows += sum(batch.num_rows for batch in reader.read(partition))
    return rows, time.process_time() - began


def _measure(uri: str, what: str, format_id: str, columns: Sequence[str]) -> None:
    given = {"path": uri, "format": format_id}
    if columns:
        given["columns"] = ",".join(columns)
    archive = Archive.at(uri)
    if what == "base":
        first = archive.boundaries[0]
        given |= {"as_of": positions.text(first.position), "exact": "true"}
    table = TableRead.of(parse(given))
    best = min(rows_and_seconds(table) for _ in range(_ROUNDS))
    rate = best[0] / best[1]
    chosen = ", ".join(columns) or "all columns"
    print(f"{what}, {format_id}, {chosen}: {best[0]:,} rows, {rate:,.0f} rows a CPU second")


def _arguments() -> Namespace:
    parser = ArgumentParser()
    parser.add_argument("uri", help="the directory with the manifest")
    parser.add_argument("--format", choices=BASE_FORMATS, nargs="*", default=BASE_FORMATS)
    parser.add_argument("--columns", nargs="*", default=[])
    return parser.parse_args()


if __name__ == "__main__":
    asked = _arguments()
    for part in ("base", "table"):
        for each in asked.format:
            _measure(asked.uri, part, each, asked.columns)
