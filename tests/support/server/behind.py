"""An ingest that falls behind and has its backlog split."""

import os
import random
import signal
from contextlib import suppress
from pathlib import Path

from laredo_fanout.catchup.plan import CatchupOptions, CatchupStatus
from tests.support.ingest import RunningIngest
from tests.support.processes import wait_until


def splitting_little(path: Path) -> CatchupOptions:
    """Options that split as small a backlog as tests make; ``path`` is for the spools."""
    return CatchupOptions(
        path / "spools",
        threshold_bytes=2_000_000,
        check_interval=0.02,
        min_segment_bytes=50_000,
        piece_bytes=100_000,
        keep_interval=0.1,
    )


def status_of(ingest: RunningIngest) -> CatchupStatus:
    """Status of fall-behind mode."""
    assert ingest.fall_behind is not None
    return ingest.fall_behind.status()


def wait_split(ingest: RunningIngest) -> CatchupStatus:
    """A backlog is split."""

    def split() -> CatchupStatus | None:
        assert ingest.error is None
        status = status_of(ingest)
        return status if status.segments else None

    return wait_until(split, "the backlog is split")


def wait_level(ingest: RunningIngest) -> None:
    """The slot's own stream goes on: segments' processes have come and gone."""

    def streams() -> bool:
        assert ingest.error is None
        return ingest.status.phase == "streaming" and not status_of(ingest).segments

    wait_until(streams, "the slot's own stream goes on")


def start_behind(ingest: RunningIngest, *tables: str) -> None:
    """Start it, and have it split its backlog at once."""
    ingest.asks_to_catch_up = True
    ingest.start(*tables)
    wait_split(ingest)
    ingest.asks_to_catch_up = False


def kill_one(ingest: RunningIngest, chance: random.Random) -> None:
    """Kill one of the segments' processes."""
    pids = [segment.pid for segment in status_of(ingest).segments if segment.pid is not None]
    if pids:
        with suppress(ProcessLookupError):
            os.kill(chance.choice(pids), signal.SIGKILL)
