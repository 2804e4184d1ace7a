"""Many clients in one process, who note when each commit reaches them.

Prints {"ready": clients}, then after ``--commits`` commits (the first ``--skip`` not counted) the
latencies from PostgreSQL's commit time to the callback, in milliseconds.
"""

import asyncio
import json
import sys
import time
from argparse import ArgumentParser, Namespace

import structlog

from laredo_fanout.client import (
    Changes,
    Endpoint,
    Handshake,
    Subscription,
    SyncOptions,
)
from laredo_model import position


async def client(number: int, arguments: Namespace, ready: asyncio.Semaphore) -> list[float]:
    options = SyncOptions(
        arguments.table,
        f"bench-latency-{arguments.name}-{number}",
        position=position.parse(arguments.position),
        history=position.parse_history(arguments.history),
    )
    seen, latencies = 0, []
    async with Subscription(Endpoint(arguments.server), options) as events:
        async for event in events:
            if isinstance(event, Handshake):
                ready.release()
            elif isinstance(event, Changes):
                now = time.time()
                for part in event.transactions():
                    seen += 1
                    if seen > arguments.skip:
                        latencies.append((now - part.time_us / 1e6) * 1000)
                if seen >= arguments.commits:
                    break
    return latencies


async def main(arguments: Namespace) -> None:
    ready = asyncio.Semaphore(0)
    tasks = [
        asyncio.create_task(client(number, arguments, ready)) for number in range(arguments.clients)
    ]
    for _ in tasks:
        await ready.acquire()
    print(json.dumps({"ready": len(tasks)}), flush=True)
    found = await asyncio.gather(*tasks)
    flat = [round(latency, 3) for latencies in found for latency in latencies]
    print(json.dumps({"latencies": flat}), flush=True)


if __name__ == "__main__":
    # What it prints on stdout is read by the benchmark.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    parser = ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--position", required=True)
    parser.add_argument("--history", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--commits", type=int, required=True)
    parser.add_argument("--skip", type=int, required=True)
    asyncio.run(main(parser.parse_args()))
