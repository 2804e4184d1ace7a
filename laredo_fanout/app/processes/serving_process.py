"""A serving process: ``python -m ... CONTROL_FD WAKE_FD BEAT_FD LOG_FORMAT LOG_LEVEL``.

It gets its options over its control socket, and ends when that closes.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
from pathlib import Path

import structlog

from laredo_fanout.app import logs
from laredo_fanout.app.processes.clients import RemoteRegistry
from laredo_fanout.app.processes.control_wire import (
    Control,
    ControlClosed,
    SocketWakeups,
    options_from_json,
)
from laredo_fanout.serving.endpoints.probes import Readiness
from laredo_fanout.serving.errors import ServingError
from laredo_fanout.serving.options import ServingOptionChanges
from laredo_fanout.serving.server import serve
from laredo_fanout.serving.shared import SentCounts
from laredo_fanout.store.errors import StoreError
from laredo_fanout.store.reader import StoreReader
from laredo_fanout.watchdog import LoopPulse, beat
from laredo_service.log import capture_native_lines

MAIN_IS_GONE = 3
CANT_SERVE = 4
_REPORT_S = 1.0

log = structlog.get_logger("laredo_fanout.serving")


async def run(control_end: socket.socket, wake_end: socket.socket, beat_end: int) -> int:
    """Serve until the main process sends drain; returns the process's exit code."""
    pulse = LoopPulse()
    beat(beat_end, pulse.is_well)
    control = await Control.over(control_end)
    wakeups = SocketWakeups(wake_end)
    options = await control.receive()
    if options["op"] == "drain":
        return 0
    registry = RemoteRegistry(control)
    drain, readiness, sent = asyncio.Event(), Readiness(), SentCounts()
    changes = ServingOptionChanges()
    listener = asyncio.create_task(_listen_to_main(control, registry, drain, readiness, changes))
    reporting = asyncio.create_task(_keep_reporting(control, sent, pulse))
    try:
        reader = StoreReader.open(Path(options["state"]))
        await serve(
            options_from_json(options["serving"]),
            reader,
            wakeups,
            registry,
            drain,
            on_listening=lambda port: control.send({"op": "listening", "port": port}),
            on_replay=lambda table, outcome: control.send(
                {"op": "replay", "table": table, "outcome": outcome.value}
            ),
            request_check=lambda: control.send({"op": "check"}),
            report_damage=lambda found: control.send({"op": "damaged", "damage": list(found)}),
            readiness=readiness,
            sent=sent,
            changes=changes,
            report_standby=registry.report_standby,
        )
    except (ServingError, StoreError) as error:
        control.send({"op": "failed", "message": str(error)})
        log.error("serving process failed", error=str(error))
        return CANT_SERVE
    finally:
        listener.cancel()
        reporting.cancel()
        await registry.flush()
        _report(control, sent)
        await control.close()
    return 0


async def _keep_reporting(control: Control, sent: SentCounts, pulse: LoopPulse) -> None:
    while True:
        pulse.came_round()
        await asyncio.sleep(_REPORT_S)
        _report(control, sent)


def _report(control: Control, sent: SentCounts) -> None:
    size, messages = sent.take()
    if messages:
        control.send({"op": "sent", "bytes": size, "messages": messages})


async def _listen_to_main(
    control: Control,
    registry: RemoteRegistry,
    drain: asyncio.Event,
    readiness: Readiness,
    changes: ServingOptionChanges,
) -> None:
    while True:
        try:
            message = await control.receive()
        except ControlClosed:
            # Its sessions would see a store that isn't written: leave the port to the next server.
            os._exit(MAIN_IS_GONE)
        if message["op"] == "drain":
            drain.set()
        elif message["op"] == "health":
            readiness.update(ready=message["ready"])
        elif message["op"] == "change":
            options = options_from_json(message["serving"])
            changes.put(options, lambda: control.send({"op": "changed"}))
        elif message["op"] == "answer":
            registry.answered(message)


def main() -> int:
    control_fd, wake_fd, beat_fd, log_format, level = sys.argv[1:]
    capture_native_lines()
    logs.configure(logs.LogSettings(log_format, level))
    # The modules stay: a full collection over them would hold every client for tens of ms.
    gc.freeze()
    # The main process decides when to drain; a terminal's Ctrl-C reaches the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    control, wake = (socket.socket(fileno=int(each)) for each in (control_fd, wake_fd))
    return asyncio.run(run(control, wake, int(beat_fd)))


if __name__ == "__main__":
    sys.exit(main())
