"""Damaged and hostile archives: every command says what is wrong, and none of them falls over."""

import resource
import shutil
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from laredo_archive.cli import main
from laredo_archive.codec.arrow.range_rows import batches
from laredo_archive.codec.arrow.types import Special, TypeChoice
from laredo_archive.errors import ArchiveError
from laredo_archive.manifest import key_ranges
from laredo_archive.read import fetched_diff
from laredo_model.errors import ModelError
from laredo_spark.errors import SparkReadError
from laredo_spark.options import ReadOptions
from laredo_spark.read.table_read import TableRead
from tests.fuzz import budget
from tests.fuzz.mutated_archives import Mutant

HANGS_S = 60
MEMORY_BYTES = 1500 << 20
"""More than what is mapped before: an archive of some kilobytes has no use for it."""
DOCUMENTED = {0, 1}


def commands(path: Path, out: Path) -> Iterator[list[str]]:
    place = str(path)
    yield ["ls", place]
    yield ["ls", "--json", place]
    yield ["cat", place]
    yield ["cat", "--as-of", "0/15", place]
    yield ["cat", "--as-of", "2026-06-03T10:00:00Z", place]
    yield ["diff", "--from", "0/10", place]
    yield ["verify", place]
    yield ["gc", "--dry-run", place]
    for extension in ("jsonl", "csv", "pb", "parquet"):
        yield ["export", place, str(out / f"exported.{extension}")]
    yield ["copy", place, str(out / "copied" / path.name)]
    yield ["gc", "--cut-off-hours", "0", "--grace-hours", "0", place]


@contextmanager
def bounded() -> Iterator[None]:
    """Time and memory for one command."""

    def ring(*_: Any) -> None:
        raise TimeoutError(f"a command took longer than {HANGS_S} s")

    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    previous = signal.signal(signal.SIGALRM, ring)
    signal.alarm(HANGS_S)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY_BYTES, before[1]))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
        resource.setrlimit(resource.RLIMIT_AS, before)


def read_as_spark_does(path: Path) -> None:
    """Read like a task of laredo_spark, without a JVM: key ranges as Arrow batches, and changes."""
    asked = ReadOptions(str(path), typing=TypeChoice(special=Special.NULL))
    read = TableRead.of(asked)
    open_slice = read.objects().opener()
    if read.has_ranges:
        for part in key_ranges.plan(read.boundary, read.choose, 3):
            for batch in batches(part, read.shape.reader(), read.shape.columns, open_slice):
                batch.validate()
    for artifact in read.boundary.diffs:
        for _ in fetched_diff.changes(
            read.archive.found, artifact, read.shape.columns, ("jsonl", "protobuf"), None
        ):
            pass


def failures(mutant: Mutant, out: Path) -> Iterator[str]:
    for command in commands(mutant.path, out):
        with bounded():
            result = CliRunner().invoke(main, command)
        error = result.exception
        if error is not None and not isinstance(error, SystemExit):
            told = "".join(traceback.format_exception(error))
            yield f"{' '.join(command[:-1])}: a traceback\n{told}"
        elif result.exit_code not in DOCUMENTED:
            yield f"{' '.join(command)}: exit status {result.exit_code}\n{result.output[-500:]}"
    try:
        with bounded():
            read_as_spark_does(mutant.path)
    except (ArchiveError, ModelError, SparkReadError):
        pass
    except Exception as error:  # noqa: BLE001  # whatever it is, it is told with its seed
        yield f"Spark's way: a traceback\n{''.join(traceback.format_exception(error))}"


def test_no_mutation_makes_a_command_fall_over(tmp_path: Path) -> None:
    for drawn in budget.inputs():
        with drawn as draw:
            directory = tmp_path / "case"
            shutil.rmtree(directory, ignore_errors=True)
            (directory / "out").mkdir(parents=True)
            mutant = Mutant(draw, directory)
            for failure in failures(mutant, directory / "out"):
                raise AssertionError(f"{mutant}\n{failure}")
