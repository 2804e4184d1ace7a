"""The settings of fall-behind mode."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class CatchupMode(StrEnum):
    """Trigger for the splitting of a backlog: the threshold, or a command."""

    AUTO = "auto"
    """A backlog is split when it is larger than the threshold."""
    MANUAL = "manual"
    """A backlog is split when an operator asks for it."""


@dataclass(frozen=True)
class CatchupOptions:
    """Sizes in bytes of WAL, times in seconds.

    ``auto`` begins when the lag was above ``threshold_bytes`` at three checks in a row,
    and ends below a quarter of it. ``reserve`` slots and walsenders are left to
    others. What is decoded and not yet released is in ``spool_directory``, at
    most about ``spool_max_bytes`` of it.
    """

    spool_directory: Path
    mode: CatchupMode = CatchupMode.MANUAL
    threshold_bytes: int = 1 << 30
    check_interval: float = 1.0
    max_segments: int = 4
    min_segment_bytes: int = 64 * 10**6
    reserve: int = 2
    spool_max_bytes: int = 8 << 30
    piece_bytes: int = 64 << 20
    """A spool's files are about so large, and removed one by one."""
    keep_interval: float = 5.0
    """Seconds between two records of the segments' progress in the store."""
