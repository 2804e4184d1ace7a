"""``laredo-fanout check``: tries what the server needs, and prints how to cure what fails."""

from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    """Result of one check."""

    RIGHT = "ok"
    WARNING = "warning"
    MISSING = "missing"


class ServerFinding(NamedTuple):
    """The result of one check."""

    what: str
    verdict: Verdict
    detail: str
    #: What to run or to do.
    cure: str = ""
