"""Limit of the spools' disk space: the last segments are the first to wait."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from laredo_fanout.catchup import spool

if TYPE_CHECKING:
    from laredo_fanout.catchup.options import CatchupOptions
    from laredo_fanout.catchup.segment_run import SegmentRun

_log = structlog.get_logger()

_PAUSE_FROM, _GO_ON_BELOW = 0.9, 0.7


def bound(runs: Sequence[SegmentRun], unread_bytes: int, options: CatchupOptions) -> None:
    """Pause segments if the spools are too large, the last one first.

    ``runs`` begin with the head, which has ``unread_bytes`` left to read. The head is paused only
    if that is enough to go on with.
    """
    head = runs[0]
    most, spooled = options.spool_max_bytes, sum(run.spooled_bytes for run in runs)
    active = [run for run in runs if run.pid is not None]
    if spooled > _PAUSE_FROM * most:
        enough = unread_bytes > 2 * options.piece_bytes
        running = [run for run in active if not run.paused and (run is not head or enough)]
        if running:
            running[-1].pause(paused=True)
    elif spooled < _GO_ON_BELOW * most:
        stopped = [run for run in active if run.paused]
        if stopped:
            stopped[0].pause(paused=False)
    if head.paused and unread_bytes <= options.piece_bytes:
        head.pause(paused=False)


def give_back(behind: Sequence[SegmentRun], directory: Path) -> bool:
    """Have the last of these that has spooled anything give its room back, and wait for its turn;
    whether there was one."""
    spooling = [run for run in behind if run.pieces or run.pid is not None]
    if not spooling:
        return False
    run = spooling[-1]
    _log.warning(
        "segment delayed: no disk space for its spool",
        segment=run.number,
        bytes=run.spooled_bytes,
        error=run.error or None,
    )
    run.give_way()
    for path in spool.paths(directory, run.number):
        path.unlink(missing_ok=True)
    return True
