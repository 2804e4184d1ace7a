"""Errors of reading an archive with Spark, and their messages on the way through Spark.

SparkReadError
├── OptionRefused     an option that can't be used
├── KeyMissing        the archive is of a table without a key
├── SchemaUnfit       .schema(...) has columns that the table lacks
├── ColumnsChanged    the archive has other columns now than when the DataFrame was made
├── NoCommonBoundary  no position was found at which all of several tables are known
├── BoundaryGone      the boundary that a DataFrame shows has left the archive
├── TypesUnfit        a row doesn't fit the types inferred from the first rows
├── ChangesGone       the changes that a reader needs next aren't in the archive
├── ArchiveBehind     the archive ends before a reader's position
├── OffsetUnreadable  a streaming checkpoint of another query
├── CheckpointOfOther a streaming checkpoint of another table
├── ColumnUnfit       an old value doesn't fit the type that its column has now
├── NotProvable       the manifest has neither row count nor checksum to compare with
├── NotEqual          rows or checksum differ from the manifest's
├── PySparkUnfit      PySpark isn't installed, or lacks what a read needs
├── JavaMissing       no Java that Spark could run on
└── ConnectMissing    a package that Spark Connect needs isn't installed

Errors of the archive itself are ArchiveErrors. An error in a task reaches the driver inside an
exception of Spark's; :func:`own_message` takes its message out.
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from laredo_archive.errors import ArchiveError
from laredo_model.errors import ModelError

_RAISED = re.compile(r"^(?:\w+: )?laredo_\w+(?:\.\w+)*\.\w+: (.+)$", re.MULTILINE)


class SparkReadError(Exception):
    """The root of this package's errors."""


class OptionRefused(SparkReadError):
    """An option that can't be used."""

    def __init__(self, name: str, value: str, reason: str) -> None:
        super().__init__(f"option {name} = {value!r}: {reason}")
        self.option = name


class KeyMissing(SparkReadError):
    """The archive is of a table without a key, and the read needs one."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where}: the table has no key, which this read needs. Read the table with read_table,"
            " or with `laredo-archive cat` as JSON lines"
        )


class SchemaUnfit(SparkReadError):
    """The schema given for a DataFrame has other columns than the table."""

    def __init__(self, where: str, problem: str, table: str) -> None:
        super().__init__(
            f"{where}: the schema that was given doesn't fit: {problem}. The table has {table}"
        )


class ColumnsChanged(SparkReadError):
    """The archive's columns have changed since the DataFrame was made."""

    def __init__(self, where: str, before: str, now: str) -> None:
        super().__init__(
            f"{where}: the columns were {before} when this DataFrame was made, and are {now} now."
            " Make it again"
        )


class BoundaryGone(SparkReadError):
    """The boundary that the DataFrame shows has left the archive."""

    def __init__(self, where: str, boundary: str) -> None:
        super().__init__(
            f"{where}: {boundary} isn't in the archive any more; retention has removed it since"
            " this DataFrame was made. Make it again, or keep more epochs (retention.keep_epochs)"
        )


class NoCommonBoundary(SparkReadError):
    """No position was found at which all of several tables are known."""

    def __init__(
        self, tables: Sequence[str], reason: str, before: str | None, after: str | None
    ) -> None:
        """``before`` and ``after``: the nearest positions that they have in common."""
        super().__init__(
            f"{', '.join(tables)}: {reason}. The nearest common position before is"
            f" {before or 'none'}, and after {after or 'none'}. Read the tables as of one of these,"
            " or wait for the next; the tables of one laredo-snapshotter process have one at every"
            " multiple of their longest diff.interval"
        )
        self.tables = tuple(tables)
        self.before = before
        self.after = after


class TypesUnfit(SparkReadError):
    """A row doesn't fit the types that were inferred from the first rows."""

    def __init__(self, uri: str, reason: str, rows: int) -> None:
        super().__init__(
            f"{uri}: {reason}. The archive names no columns, so they were taken from {rows} rows;"
            " infer from more of them (option infer_rows)"
        )


class ChangesGone(SparkReadError):
    """No diffs continue from the reader's position: there is a gap."""

    def __init__(self, where: str, start: object, reason: str) -> None:
        super().__init__(
            f"{where}: the changes after {start} have a gap: {reason}. Read the"
            " table (read_table) and go on after its boundary (option after; a stream: with a new"
            ' checkpointLocation), or have the base\'s rows instead (on_gap = "snapshot"). To keep'
            " more: retention.keep_epochs"
        )


class ArchiveBehind(SparkReadError):
    """The archive ends before the reader's position, or in a history before it."""

    def __init__(self, where: str, start: object, head: object) -> None:
        super().__init__(
            f"{where}: it ends at {head}, and {start} was read already. Is this an older copy?"
            " Read the archive that was read before, or wait until this one has caught up"
        )


class OffsetUnreadable(SparkReadError):
    """A streaming checkpoint that belongs to another query."""

    def __init__(self, offset: object) -> None:
        super().__init__(
            f"{offset} is no offset of a stream of changes: the checkpoint is of another query."
            " Give this one a checkpointLocation of its own"
        )


class CheckpointOfOther(SparkReadError):
    """A streaming checkpoint that belongs to another table's stream."""

    def __init__(self, where: str, table: str, other: object) -> None:
        super().__init__(
            f"{where}: this checkpoint is of table {other}, and the archive is of {table}. Load the"
            f" archive of {other}, or give this query a checkpointLocation of its own"
        )


class ColumnUnfit(SparkReadError):
    """A column's type changed, and one of its old values doesn't fit the present type."""

    def __init__(self, reason: str, column: str, before: str) -> None:
        super().__init__(
            f"{reason}; when the change was written the column was {before}. Read the changes until"
            f" then separately (option until), or without {column} (option columns)"
        )
        self.column = column


class NotProvable(SparkReadError):
    """The manifest has neither row count nor checksum to compare a table with."""

    def __init__(self, where: str, boundary: str) -> None:
        super().__init__(
            f"{where} at {boundary}: the manifest has neither a row count nor a checksum of the"
            " table there, so verify=True has nothing to compare with. Read it without"
        )


class NotEqual(SparkReadError):
    """The table that was read has other rows or another checksum than the manifest."""

    def __init__(self, where: str, boundary: str, expected: str, found: str) -> None:
        super().__init__(
            f"{where} at {boundary}: the manifest has {expected}, Spark read {found}."
            " Check the files with laredo-archive verify"
        )
        self.expected = expected
        self.found = found


PYSPARK = "pyspark>=4.1,<5"
"""The releases that reads and syncs need."""
PYSPARK_OF_STREAMS = "pyspark>=4.2,<5"


class PySparkUnfit(SparkReadError, ImportError):
    """PySpark isn't installed, or is a release that lacks what a read needs."""

    def __init__(self, installed: str | None, needed: str) -> None:
        if installed is None:
            super().__init__("pyspark isn't installed: pip install 'laredo-snapshotter[spark]'")
        else:
            super().__init__(
                f"PySpark {installed} lacks what this needs: pip install '{needed}', or run it on"
                " a cluster of that version"
            )


@contextmanager
def importing(needed: str = PYSPARK) -> Iterator[None]:
    """Imports in the block need a release of PySpark.

    :raises PySparkUnfit: if it isn't installed, or lacks what is imported.
    """
    try:
        yield
    except ImportError as failure:
        if (failure.name or "").partition(".")[0] != "pyspark":
            raise
        try:
            from pyspark import __version__ as installed
        except ImportError:
            raise PySparkUnfit(None, needed) from failure
        raise PySparkUnfit(installed, needed) from failure


class JavaMissing(SparkReadError):
    """No Java that Spark could run on was found."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"Spark needs Java 17 or later ({found}). Install one (Debian, Ubuntu: apt-get"
            " install openjdk-17-jre-headless; Fedora: dnf install java-17-openjdk-headless;"
            " macOS: brew install openjdk@17), or set JAVA_HOME to an installed one"
        )


class ConnectMissing(SparkReadError):
    """A package that the client of Spark Connect needs isn't installed."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Spark Connect was asked for (SPARK_REMOTE, spark.remote): {reason}."
            " pip install 'laredo-snapshotter[connect]'"
        )


def own_message(failure: BaseException) -> str | None:
    """This project's message in an exception, Spark's or our own; None if there is none."""
    if type(failure).__module__.startswith("laredo_"):
        return str(failure)
    found: list[str] = _RAISED.findall(str(failure))
    return found[-1] if found else None


# Errors on their way through Spark: one message each, without causes and stacks.

P = ParamSpec("P")
R = TypeVar("R")
_OURS = (ArchiveError, SparkReadError, ModelError)


def in_one_message(planning: Callable[P, R]) -> Callable[P, R]:
    """Decorates a planning step: Spark shows its errors without their causes and our stack."""

    @functools.wraps(planning)
    def made(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return planning(*args, **kwargs)
        except _OURS as failure:
            raise failure.with_traceback(None) from None

    return made


def each_in_one_message(reading: Callable[P, Iterator[R]]) -> Callable[P, Iterator[R]]:
    """Decorates a task's generator of rows in the same way."""

    @functools.wraps(reading)
    def made(*args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        try:
            yield from reading(*args, **kwargs)
        except _OURS as failure:
            raise failure.with_traceback(None) from None

    return made
