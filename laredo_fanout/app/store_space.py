"""The store's share of its disk, as /status and /metrics show it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_BLOCK = 512
"""What st_blocks counts, whatever the file system's own blocks are."""


class StoreSpace(NamedTuple):
    """Sizes in bytes."""

    #: The data file's part that is in use.
    used: int
    #: What the data file has of the disk: part of it was reserved ahead.
    allocated: int
    #: state.max_size.
    most: int
    #: What the server's user may still take of the disk.
    disk_free: int


def measured(directory: Path, used: int, most: int) -> StoreSpace | None:
    """The space of the store in ``directory``, of which ``used`` bytes are in use.

    None: the directory or its data file is gone.
    """
    try:
        allocated = (directory / "data.mdb").stat().st_blocks * _BLOCK
        disk = os.statvfs(directory)
    except FileNotFoundError:
        return None
    return StoreSpace(used, allocated, most, disk.f_bavail * disk.f_frsize)
