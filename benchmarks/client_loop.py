"""A client that keeps the table, measured from within: ``python -m benchmarks.client_loop ...``.

Prints JSON lines: {"event": what, ...}.
"""

import asyncio
import logging
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

import structlog

from benchmarks.counting_client import tell
from benchmarks.processes import anonymous_bytes
from laredo_fanout.client import AsyncFanoutClient, TableIndex

_SCHEDULE = Path("/proc/thread-self/schedstat")


class Stalls:
    """The longest time for which the loop ran nothing else."""

    def __init__(self) -> None:
        self.longest = 0.0
        #: The same without the waits for a processor, which other processes had meanwhile.
        self.longest_run = 0.0
        #: The same by the processor time of the loop's thread.
        self.longest_cpu = 0.0

    async def watch(self) -> None:
        """Note how late each turn is."""
        with _SCHEDULE.open("rb") as schedule:  # noqa: ASYNC230
            wall, cpu, waited = _clocks(schedule)
            while True:
                await asyncio.sleep(0)
                since, used_before, waited_before = wall, cpu, waited
                wall, cpu, waited = _clocks(schedule)
                took = wall - since
                self.longest = max(self.longest, took)
                self.longest_run = max(self.longest_run, took - (waited - waited_before))
                self.longest_cpu = max(self.longest_cpu, cpu - used_before)


def _clocks(schedule: BinaryIO) -> tuple[float, float, float]:
    """Seconds of the clock, of this thread's CPU and of its waits, all at one time: a wait between
    two readings would count for another turn in one of them."""
    waited = _waited(schedule)
    while True:
        wall, cpu = time.perf_counter(), time.thread_time()
        waited, before = _waited(schedule), waited
        if waited == before:
            return wall, cpu, waited


def _waited(schedule: BinaryIO) -> float:
    """Seconds for which this thread could run and had no processor."""
    return int(os.pread(schedule.fileno(), 100, 0).split()[1]) / 1e9


@asynccontextmanager
async def watched(what: str, *, wanted: bool) -> AsyncIterator[None]:
    """Tell the CPU that it took, or the longest stalls in it."""
    stalls, began = Stalls(), time.process_time()
    watching = asyncio.create_task(stalls.watch()) if wanted else None
    yield
    if watching is None:
        tell(event=what, cpu=time.process_time() - began)
    else:
        watching.cancel()
        tell(
            event=what,
            stall=stalls.longest,
            stall_run=stalls.longest_run,
            stall_cpu=stalls.longest_cpu,
        )


def client_of(arguments: Namespace) -> AsyncFanoutClient:
    return AsyncFanoutClient(
        arguments.server,
        arguments.table,
        indexes={name: TableIndex([name]) for name in arguments.index},
        transport=arguments.transport,
    )


async def keep(arguments: Namespace) -> None:
    """The snapshot, then so many changes: CPU, or with ``--stalls`` the longest stall in them."""
    client = client_of(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    async with watched("snapshot", wanted=arguments.stalls):
        await client.start()
        await client.await_ready()
    tell(event="ready", rows=len(client), memory=anonymous_bytes(os.getpid()))
    last = (client.sequence or 0) + arguments.changes
    async with watched("changes", wanted=arguments.stalls):
        # A listener would be measured, too.
        while (client.sequence or 0) < last:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await client.stop()


async def resume(arguments: Namespace) -> None:
    """Tell each stream that begins, for ever."""
    structlog.configure(processors=[_tell_connected])
    async with client_of(arguments) as client:
        await client.await_ready()
        tell(event="ready")
        await asyncio.Event().wait()


def _tell_connected(
    logger: object, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    if event["event"] == "connected":
        tell(event="connected", mode=event["mode"])
    raise structlog.DropEvent


if __name__ == "__main__":
    # What it prints on stdout is read by the benchmark.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    parser = ArgumentParser()
    parser.add_argument("what", choices=["keep", "resume"])
    parser.add_argument("--server", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--transport", default="grpc")
    parser.add_argument("--index", nargs="*", default=[])
    parser.add_argument("--changes", type=int, default=0)
    parser.add_argument("--stalls", action="store_true")
    given = parser.parse_args()
    asyncio.run(globals()[given.what](given))
