"""What can go wrong between an archive and Spark.

SparkReadError
├── OptionRefused     an option that can't be used
├── KeyMissing        the archive is of a table without a key
├── ColumnsChanged    the archive has other columns now than when the DataFrame was made
├── BoundaryGone      what the DataFrame was to show has left the archive
├── TypesUnfit        a row doesn't fit the types that the first rows showed
├── ChangesGone       the changes that a reader needs next aren't in the archive
├── ArchiveBehind     the archive ends before where a reader already is
├── OffsetUnreadable  a checkpoint of something else
├── ColumnUnfit       a value of before doesn't fit the type that its column has now
├── NotProvable       the archive says nothing that what is read could be compared with
├── NotEqual          rows or checksum aren't what the archive says
└── JavaMissing       there is no Java that Spark could run on

What is wrong with the archive itself comes as an ArchiveError. What happens in a task
reaches the driver inside of an exception of Spark's: ``said`` takes the message out of it.
"""

import re

_RAISED = re.compile(r"^(?:\w+: )?laredo_\w+(?:\.\w+)*\.\w+: (.+)$", re.MULTILINE)


class SparkReadError(Exception):
    """The root of this package's errors."""


class OptionRefused(SparkReadError):
    """An option that can't be used."""

    def __init__(self, name: str, value: str, reason: str) -> None:
        super().__init__(f"option {name} = {value!r}: {reason}")
        self.option = name


class KeyMissing(SparkReadError):
    """The archive is of a table without a key, which isn't read by ranges of keys."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where}: its table has no key, and this version of laredo-spark reads by keys alone."
            " `laredo-archive cat` gives its rows as JSON lines, which spark.read.json reads"
        )


class ColumnsChanged(SparkReadError):
    """The columns are others than when the DataFrame was made."""

    def __init__(self, where: str, before: str, now: str) -> None:
        super().__init__(
            f"{where}: the columns were {before} when this DataFrame was made, and are {now} now."
            " Make it again"
        )


class BoundaryGone(SparkReadError):
    """The boundary that the DataFrame was to show has left the archive."""

    def __init__(self, where: str, boundary: str) -> None:
        super().__init__(
            f"{where}: {boundary} isn't in the archive any more; retention has removed it since"
            " this DataFrame was made. Make it again, or keep more epochs (retention.keep_epochs)"
        )


class TypesUnfit(SparkReadError):
    """A row doesn't fit the types that the first rows showed."""

    def __init__(self, uri: str, reason: str, rows: int) -> None:
        super().__init__(
            f"{uri}: {reason}. The archive names no columns, so they were taken from {rows} rows;"
            " have more of them looked at (option infer_rows)"
        )


class ChangesGone(SparkReadError):
    """No diffs lead on from where the reader is: there is a gap."""

    def __init__(self, where: str, start: object, reason: str) -> None:
        super().__init__(
            f"{where}: the changes after {start} can't be had without a gap: {reason}. Read the"
            " table (read_table) and go on after its boundary (option after; a stream: with a new"
            ' checkpointLocation), or have the base\'s rows instead (on_gap = "snapshot"). To keep'
            " more: retention.keep_epochs"
        )


class ArchiveBehind(SparkReadError):
    """The archive ends before where a reader already is, in the same history."""

    def __init__(self, where: str, start: object, head: object) -> None:
        super().__init__(
            f"{where}: it ends at {head}, and {start} was read already. Is this an older copy?"
            " Read the archive that was read before, or wait until this one is level"
        )


class OffsetUnreadable(SparkReadError):
    """A streaming checkpoint that isn't of a stream of changes."""

    def __init__(self, offset: object) -> None:
        super().__init__(
            f"{offset} is no offset of a stream of changes: the checkpoint is of another query."
            " Give this one a checkpointLocation of its own"
        )


class ColumnUnfit(SparkReadError):
    """A column had another type, and one of its values doesn't fit the one that it has now."""

    def __init__(self, reason: str, column: str, before: str) -> None:
        super().__init__(
            f"{reason}; when the change was written the column was {before}. Read the changes up to"
            f" there apart (option until), or leave {column} out (option columns)"
        )
        self.column = column


class NotProvable(SparkReadError):
    """The archive says nothing that what is read could be compared with."""

    def __init__(self, where: str, boundary: str) -> None:
        super().__init__(
            f"{where} at {boundary}: the manifest has neither a row count nor a checksum of the"
            " table there, so verify=True has nothing to compare with. Read it without"
        )


class NotEqual(SparkReadError):
    """The table that was read isn't the one that the archive describes."""

    def __init__(self, where: str, boundary: str, said: str, found: str) -> None:
        super().__init__(
            f"{where} at {boundary}: the archive says {said}, and what Spark read has {found}."
            " Check the files with laredo-archive verify"
        )
        self.said = said
        self.found = found


class JavaMissing(SparkReadError):
    """There is no Java that Spark could run on."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"Spark needs Java 17 or later ({found}). Install one (Debian, Ubuntu: apt-get install"
            " openjdk-17-jre-headless; Fedora: dnf install java-17-openjdk-headless; macOS: brew"
            " install openjdk@17), or set JAVA_HOME to one that is there"
        )


def said(failure: BaseException) -> str | None:
    """The one message of ours in an exception, Spark's or our own; None if there is none."""
    if type(failure).__module__.startswith("laredo_"):
        return str(failure)
    found: list[str] = _RAISED.findall(str(failure))
    return found[-1] if found else None
