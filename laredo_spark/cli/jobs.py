"""Spark jobs of the commands of ``laredo-spark``."""

import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from pyspark.sql import SparkSession

from laredo_service.printable import printable, printable_lines
from laredo_spark.cli.output import TableOutput
from laredo_spark.frames.table import read_table
from laredo_spark.session import remote, session
from laredo_spark.sync import config as sync_config
from laredo_spark.sync.config import SparkBlock
from laredo_spark.sync.errors import DeltaMissing, IcebergMissing
from laredo_spark.sync.lakehouse import delta_fit, iceberg_fit
from laredo_spark.sync.sync import Done, sync_tables

FAILED = 1


@dataclass(frozen=True)
class SparkJob:
    """A command's work, in a Spark session of its own."""

    #: Whether Spark's own log is shown.
    verbose: bool

    def read(
        self,
        uri: str,
        as_of: str | None,
        *,
        columns: str | None,
        key_fields: str | None,
        master: str | None,
        conf: Mapping[str, str],
        to: tuple[str, str | None, bool, int],
        options: Mapping[str, Any],
    ) -> None:
        """Write the table at a boundary as files, or show its first rows.

        ``columns`` and ``key_fields`` are names with commas between them.

        :param to: kind, directory, whether that is replaced, and how many rows are shown.
        """
        kind, out, replace, rows = to
        output = TableOutput.of(kind, out, replace=replace, rows=rows)
        asked = dict(options)
        spark = self._session(SparkBlock(master=master, conf=dict(conf)))
        if output.wants_lines(columns):
            asked["lines"] = "true"
        frame = read_table(
            spark, uri, as_of, columns=_listed(columns), key_fields=_listed(key_fields), **asked
        )
        output.write(frame)

    def sync(
        self, config: Path, sets: tuple[str, ...], targets: Sequence[str], *, rebuild: bool
    ) -> None:
        """Bring targets of a configuration up to date; none chosen: all of them.

        :raises SystemExit: with status 1 if a table failed, which was reported on stderr.
        """
        block = sync_config.load(config, sets)
        known = [*block.jobs(rebuild=rebuild), *block.catalog_jobs(rebuild=rebuild)]
        jobs = [job for job in known if not targets or job.target in targets]
        if unknown := sorted({*targets} - {job.target for job in jobs}):
            raise click.UsageError(f"{config} has no target {unknown[0]}")
        spark = self._session(block.spark, _settings_for({job.to for job in jobs}))
        done = sync_tables(spark, jobs, parallel=block.parallel, on_done=_report_done)
        if any(one.failure is not None for one in done):
            sys.exit(FAILED)

    def _session(self, block: SparkBlock, more: Mapping[str, str] | None = None) -> SparkSession:
        """A session with the block's settings, which override those of ``more``."""
        made = session("laredo-spark", block.master, {**(more or {}), **block.settings})
        if not remote(block.settings):
            # A task's failure is one message of ours; the log adds the JVM's stack and Python's.
            made.sparkContext.setLogLevel("WARN" if self.verbose else "OFF")
        return made


def _listed(names: str | None) -> list[str] | None:
    return None if names is None else names.split(",")


def _report_done(done: Done) -> None:
    if done.failure is None:
        line = f"{done.synced}, {done.synced.seconds:.1f} s" if done.synced else ""
        click.echo(printable(line))
    else:
        click.echo(printable_lines(f"laredo-spark: {done.job.path}: {done.failure}"), err=True)


def _settings_for(formats: Collection[str]) -> Mapping[str, str]:
    """Without what a format needs, the tables of that format fail, each with a message."""
    together: dict[str, str] = {}
    for name, settings in (("delta", delta_fit.settings), ("iceberg", iceberg_fit.settings)):
        with suppress(DeltaMissing, IcebergMissing):
            for setting, value in settings().items() if name in formats else ():
                # Packages and extensions of both are lists with commas.
                together[setting] = ",".join(filter(None, (together.get(setting), value)))
    return together
