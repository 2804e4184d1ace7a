"""What a check found: one thing looked at, how it stands, and what to do about it."""

from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    RIGHT = "ok"
    WARNING = "warning"
    MISSING = "missing"


class Finding(NamedTuple):
    """One thing looked at: ``cure`` is what to run or to do."""

    what: str
    verdict: Verdict
    detail: str
    cure: str = ""
