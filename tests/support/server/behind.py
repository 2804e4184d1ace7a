"""An ingest that falls behind and has its backlog split."""

import os
import random
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from laredo_fanout.catchup.options import CatchupOptions
from laredo_fanout.catchup.status import CatchupStatus
from tests.support.ingest import RunningIngest
from tests.support.processes import PATIENCE_S, wait_until
from tests.support.server.fanout_program import Fanout


@contextmanager
def asking(server: Fanout) -> Iterator[None]:
    """Have a server that stands still split its backlog as soon as it goes on, in the block."""
    port = int(server.program.http.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"POST /catchup HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n\r\n")
        yield
        connection.settimeout(PATIENCE_S)
        answer = connection.recv(100)
    assert answer.split()[1] in {b"200", b"202"}, answer


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
    """How fall-behind mode stands."""
    assert ingest.fall_behind is not None
    return ingest.fall_behind.status()


def wait_split(ingest: RunningIngest) -> CatchupStatus:
    """A backlog is split."""

    def split() -> CatchupStatus | None:
        assert ingest.error is None
        status = status_of(ingest)
        return status if status.segments else None

    found: CatchupStatus = wait_until(split, "the backlog is split")
    return found


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
