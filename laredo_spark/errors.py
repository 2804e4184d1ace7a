"""What can go wrong between an archive and Spark.

SparkReadError
├── OptionRefused     an option that can't be used
├── ColumnsChanged    the archive has other columns now than when the DataFrame was made
├── BoundaryGone      what the DataFrame was to show has left the archive
└── NotEqual          rows or checksum aren't what the archive says

What is wrong with the archive itself comes as an ArchiveError.
"""


class SparkReadError(Exception):
    """The root of this package's errors."""


class OptionRefused(SparkReadError):
    """An option that can't be used."""

    def __init__(self, name: str, value: str, reason: str) -> None:
        super().__init__(f"option {name} = {value!r}: {reason}")
        self.option = name


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


class NotEqual(SparkReadError):
    """The table that was read isn't the one that the archive describes."""

    def __init__(self, where: str, boundary: str, said: str, found: str) -> None:
        super().__init__(
            f"{where} at {boundary}: the archive says {said}, and what Spark read has {found}."
            " Check the files with laredo-archive verify"
        )
        self.said = said
        self.found = found
