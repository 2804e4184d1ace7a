"""Commands of ``laredo-spark`` that run on Spark, and the output of their rows."""

import io
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it
from pyspark.sql.types import ArrayType, BinaryType, StructField

from laredo_archive.read import location
from laredo_service.printable import printable, printable_lines
from laredo_spark.errors import SparkReadError
from laredo_spark.frames import read_table
from laredo_spark.session import quoted, remote, session
from laredo_spark.sync import config as sync_config
from laredo_spark.sync import delta, iceberg
from laredo_spark.sync.config import SparkBlock
from laredo_spark.sync.errors import DeltaMissing, IcebergMissing
from laredo_spark.sync.spark import FAILURES, file_uri
from laredo_spark.sync.sync import Done, Job, sync_tables


class OutputThere(SparkReadError):
    """The output directory exists already."""

    def __init__(self, out: Path | str) -> None:
        super().__init__(f"{out} exists already; give another --out, or --force to replace it")


class OutputRefused(SparkReadError):
    """An output that can't be written to."""

    def __init__(self, out: str, reason: str) -> None:
        super().__init__(f"--out {out}: {reason}")


@dataclass(frozen=True)
class TableOutput:
    """Target and format of a table that ``laredo-spark read`` writes."""

    #: parquet, csv, jsonl or show.
    kind: str
    #: The directory, or s3a: URI, to make, with a file for each task; None: stdout.
    out: Path | str | None
    #: Whether an existing directory is replaced.
    replace: bool
    #: The number of rows that ``show`` prints.
    rows: int

    def __post_init__(self) -> None:
        """:raises OutputThere: if the directory is there and mustn't be replaced.

        :raises OutputRefused: if it isn't a directory.
        """
        if self.kind in ("parquet", "csv") and self.out is None:
            raise click.UsageError(f"--to {self.kind} needs --out DIRECTORY")
        if self.kind == "show" and self.out is not None:
            raise click.UsageError("--to show writes no files; --to parquet, csv or jsonl does")
        if not isinstance(self.out, Path):
            return
        if self.out.is_file():
            raise OutputRefused(str(self.out), "is a file; give a directory")
        if self.out.exists() and not self.replace:
            raise OutputThere(self.out)

    @classmethod
    def of(cls, kind: str, out: str | None, *, replace: bool, rows: int) -> "TableOutput":
        """``out``: a path, a file: URI, or one of a bucket.

        :raises OutputRefused: if it is another URI; and as the constructor.
        :raises DestinationError: if it names another host.
        """
        if out is None:
            return cls(kind, None, replace, rows)
        found = urlsplit(out) if ":/" in out else None
        if found is not None and found.scheme in ("s3", "s3a"):
            return cls(kind, f"s3a://{found.netloc}{found.path}", replace, rows)
        if found is not None and found.scheme not in ("", "file"):
            raise OutputRefused(
                out,
                "files are written to a directory that all of Spark's workers see, or to s3://;"
                " elsewhere, write read_table()'s DataFrame with your session's own connector",
            )
        return cls(kind, Path(location.local_path(out)).expanduser(), replace, rows)

    def write(self, frame: DataFrame) -> None:
        """Write the rows; a line on stderr names the directory."""
        if self.kind == "show":
            text = io.StringIO()
            with redirect_stdout(text):
                frame.show(self.rows, truncate=50)
            click.echo(printable_lines(text.getvalue()), nl=False)
            return
        if self.kind == "jsonl" and self.out is None:
            self._print(frame)
            return
        assert self.out is not None
        uri = file_uri(self.out) if isinstance(self.out, Path) else self.out
        try:
            self._write_files(frame, uri)
        except FAILURES as failure:
            if "S3AFileSystem not found" in str(failure):
                raise OutputRefused(uri, _connector_missing(frame)) from failure
            if "PATH_ALREADY_EXISTS" in str(failure):
                raise OutputThere(uri) from failure
            raise
        click.echo(f"{self.out}: written as {self.kind}", err=True)

    def _write_files(self, frame: DataFrame, uri: str) -> None:
        mode = "overwrite" if self.replace else "errorifexists"
        made = frame.write.mode(mode)
        if self.kind == "parquet":
            made.parquet(uri)
        elif self.kind == "csv":
            _plain(frame).write.mode(mode).csv(uri, header=True, escape='"')
        elif frame.columns == ["line"]:
            made.text(uri)
        else:
            made.json(uri, ignoreNullFields=False)

    def _print(self, frame: DataFrame) -> None:
        """One task's rows at a time."""
        on_terminal = sys.stdout.isatty()
        lines = frame if frame.columns == ["line"] else _as_json(frame)
        for row in lines.toLocalIterator():
            sys.stdout.write(f"{printable(row[0]) if on_terminal else row[0]}\n")
        sys.stdout.flush()


def _as_json(frame: DataFrame) -> DataFrame:
    return frame.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}))


def _plain(frame: DataFrame) -> DataFrame:
    """Without what CSV lacks: arrays as JSON text, bytes as PostgreSQL prints them."""
    return frame.select([_text(field).alias(field.name) for field in frame.schema])


def _text(field: StructField) -> Column:
    column = F.col(quoted(field.name))
    if isinstance(field.dataType, ArrayType):
        return F.to_json(column)
    if isinstance(field.dataType, BinaryType):
        return F.concat(F.lit("\\x"), F.lower(F.hex(column)))
    return column


def _connector_missing(frame: DataFrame) -> str:
    return (
        "Spark writes to buckets with hadoop-aws, which isn't in this session: --conf"
        f" spark.jars.packages=org.apache.hadoop:hadoop-aws:{_hadoop_version(frame)}"
    )


def _hadoop_version(frame: DataFrame) -> str:
    try:
        hadoop = frame.sparkSession.sparkContext._jvm.org.apache.hadoop  # type: ignore[union-attr]
        return str(hadoop.util.VersionInfo.getVersion())
    except PySparkException:  # over Spark Connect
        return "VERSION"


# Spark jobs of the commands of ``laredo-spark``.


@dataclass(frozen=True)
class SparkJob:
    """A command's work, in a Spark session of its own."""

    #: Whether Spark's own log is shown.
    verbose: bool

    def read(
        self,
        uri: str,
        *,
        master: str | None,
        conf: Mapping[str, str],
        to: tuple[str, str | None, bool, int],
        options: Mapping[str, Any],
    ) -> None:
        """Write the table at a boundary as files, or show its first rows.

        :param to: kind, directory, True to replace that, and the number of rows to show.
        :param options: those of :mod:`laredo_spark.options`.
        """
        kind, out, replace, rows = to
        output = TableOutput.of(kind, out, replace=replace, rows=rows)
        asked = {**options, "path": uri}
        spark = self._session(SparkBlock(master=master, conf=dict(conf)))
        if kind == "jsonl" and "columns" not in asked:
            asked["lines"] = "true"
        output.write(read_table(spark, **asked))

    def sync(
        self, config: Path, sets: tuple[str, ...], targets: Sequence[str], *, rebuild: bool
    ) -> None:
        """Bring targets of a configuration up to date; none chosen: all of them.

        :raises SystemExit: with status 1 if a table or catalog failed, which was reported on
            stderr.
        """
        block = sync_config.load(config, sets)
        of_catalogs, failed = block.catalog_jobs(rebuild=rebuild)
        known = [*block.jobs(rebuild=rebuild), *of_catalogs]
        targets_of = Counter(job.target.rstrip("/") for job in known)
        if shared := [target for target, number in targets_of.items() if number > 1]:
            several = ", ".join(sorted(shared))
            raise click.UsageError(f"{config}: more than one table has the target {several}")
        jobs = [job for job in known if not targets or job.target in targets]
        unknown = sorted({*targets} - {job.target for job in jobs})
        if targets:
            failed = [one for one in failed if any(_may_have(one.job, each) for each in unknown)]
        for target in unknown:
            if not any(_may_have(one.job, target) for one in failed):
                raise click.UsageError(f"{config} has no target {target}")
        for one in failed:
            _report_done(one)
        done: list[Done] = []
        if jobs:
            spark = self._session(block.spark, _settings_for({job.to for job in jobs}))
            done = sync_tables(spark, jobs, parallel=block.parallel, on_done=_report_done)
        if any(one.failure is not None for one in [*failed, *done]):
            sys.exit(1)

    def _session(self, block: SparkBlock, more: Mapping[str, str] | None = None) -> SparkSession:
        """A session with the block's settings, which override those of ``more``."""
        made = session("laredo-spark", block.master, {**(more or {}), **block.settings})
        if not remote(block.settings):
            # A task's failure is one message of ours; the log adds the JVM's stack and Python's.
            made.sparkContext.setLogLevel("WARN" if self.verbose else "OFF")
        return made


def _report_done(done: Done) -> None:
    if done.failure is None:
        line = f"{done.synced}, {done.synced.seconds:.1f} s" if done.synced else ""
        click.echo(printable(line))
    else:
        click.echo(printable_lines(f"laredo-spark: {done.job.path}: {done.failure}"), err=True)


def _may_have(catalog: Job, target: str) -> bool:
    """True if ``target`` may be the one of a table of a catalog that couldn't be read."""
    return target.startswith(catalog.target.rstrip("/"))


def _settings_for(formats: Collection[str]) -> Mapping[str, str]:
    """Without what a format needs, the tables of that format fail, each with a message."""
    together: dict[str, str] = {}
    for name, settings in (("delta", delta.settings), ("iceberg", iceberg.settings)):
        with suppress(DeltaMissing, IcebergMissing):
            for setting, value in settings().items() if name in formats else ():
                # Packages and extensions of both are lists with commas.
                together[setting] = ",".join(filter(None, (together.get(setting), value)))
    return together
