"""What ``laredo-spark read`` makes of a table: files, or rows on the terminal."""

import sys
from dataclasses import dataclass
from pathlib import Path

import click
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it
from pyspark.sql.types import ArrayType, BinaryType, StructField

from laredo_spark.errors import SparkReadError

KINDS = ("parquet", "csv", "jsonl", "show")


class OutputThere(SparkReadError):
    """The directory is there already."""

    def __init__(self, out: Path) -> None:
        super().__init__(f"{out} is there already; give another --out, or --force to replace it")


@dataclass(frozen=True)
class Output:
    """``out`` is a directory to make, with a file for each task."""

    kind: str
    out: Path | None
    replace: bool
    rows: int

    def __post_init__(self) -> None:
        """:raises OutputThere: if the directory is there and mustn't be replaced."""
        if self.kind in ("parquet", "csv") and self.out is None:
            raise click.UsageError(f"--to {self.kind} needs --out DIRECTORY")
        if self.kind == "show" and self.out is not None:
            raise click.UsageError("--to show writes no files; --to parquet, csv or jsonl does")
        if self.out is not None and self.out.exists() and not self.replace:
            raise OutputThere(self.out)

    def wants_lines(self, columns: str | None) -> bool:
        """Whether the rows' own JSON lines are what is written, every value as it stands there."""
        return self.kind == "jsonl" and columns is None

    def write(self, frame: DataFrame) -> None:
        """Make the files; says where on stderr."""
        if self.kind == "show":
            frame.show(self.rows, truncate=50)
            return
        if self.kind == "jsonl" and self.out is None:
            self._print(frame)
            return
        assert self.out is not None
        made = frame.write.mode("overwrite" if self.replace else "errorifexists")
        place = self.out.absolute().as_uri()
        if self.kind == "parquet":
            made.parquet(place)
        elif self.kind == "csv":
            _plain(frame).write.mode("overwrite").csv(place, header=True, escape='"')
        elif frame.columns == ["line"]:
            made.text(place)
        else:
            made.json(place, ignoreNullFields=False)
        click.echo(f"{self.out}: written as {self.kind}", err=True)

    def _print(self, frame: DataFrame) -> None:
        """One task's rows at a time."""
        lines = frame if frame.columns == ["line"] else _as_json(frame)
        for row in lines.toLocalIterator():
            sys.stdout.write(f"{row[0]}\n")
        sys.stdout.flush()


def _as_json(frame: DataFrame) -> DataFrame:
    return frame.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}))


def _plain(frame: DataFrame) -> DataFrame:
    """Without what CSV lacks: arrays as JSON text, bytes as PostgreSQL prints them."""
    return frame.select([_text(field).alias(field.name) for field in frame.schema])


def _text(field: StructField) -> Column:
    column = F.col(f"`{field.name.replace('`', '``')}`")
    if isinstance(field.dataType, ArrayType):
        return F.to_json(column)
    if isinstance(field.dataType, BinaryType):
        return F.concat(F.lit("\\x"), F.lower(F.hex(column)))
    return column
