"""The store's share of its disk, as /status and /metrics show it."""

from __future__ import annotations

import os
from typing import NamedTuple

from laredo_fanout.store.writer import Store

_BLOCK = 512
"""Unit of st_blocks, whatever the file system's own blocks are."""


class StoreSpace(NamedTuple):
    """Sizes in bytes."""

    #: What the data file has of the disk: part of it is reserved ahead.
    allocated: int
    #: What it can still take: unused pages of the data file, and what it may grow.
    free: int
    #: state.max_size.
    most: int
    #: What the server's user may still take of the disk.
    disk_free: int


def measured(store: Store, most: int) -> StoreSpace | None:
    """The space of the store, of which it may take ``most`` bytes.

    None: the directory or its data file is gone.
    """
    try:
        allocated = (store.path / "data.mdb").stat().st_blocks * _BLOCK
        disk = os.statvfs(store.path)
    except FileNotFoundError:
        return None
    return StoreSpace(allocated, store.free_bytes, most, disk.f_bavail * disk.f_frsize)
