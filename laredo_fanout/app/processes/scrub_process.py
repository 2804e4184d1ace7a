"""The process that scrubs the store once: ``python -m ...process BEAT_FD LOG_FORMAT LOG_LEVEL``.

Its order comes as a line on stdin. Each line on stdout is JSON: its progress, or damage that it
found; the last line reports its end. The process ends when the main process does.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from laredo_fanout.app import logs
from laredo_fanout.store.errors import JournalDamaged, RowsDamaged, StoreError
from laredo_fanout.store.reader import StoreReader
from laredo_fanout.store.scrub import TableScrub
from laredo_fanout.watchdog import beat

FAILED = 1
_NICENESS = 19
_REPORT_S = 1.0


def main() -> int:
    beat_fd, log_format, level = sys.argv[1:]
    beat(int(beat_fd))
    logs.configure(logs.LogSettings(log_format, level))
    # A reload is for the main process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.nice(_NICENESS)
    order = orjson.loads(sys.stdin.buffer.readline())
    try:
        reader = StoreReader.open(Path(order["state"]))
        try:
            scrub(reader, order["bytes_per_second"], _say)
        finally:
            reader.close()
    except StoreError as error:
        _say({"error": str(error)})
        return FAILED
    return 0


Say = Callable[[dict[str, Any]], None]


def scrub(reader: StoreReader, bytes_per_second: int, say: Say) -> None:
    """Scrub every table that clients see, at this rate; one whose damage is known is passed over
    until it is repaired."""
    tables = [view for view in reader.tables() if view.shown]
    begun, done, reported = time.monotonic(), 0, 0.0
    for number, view in enumerate(tables):
        scrubbed = TableScrub(reader, view.id)
        for size in _until_damaged(scrubbed, say):
            done += size
            now = time.monotonic()
            if now - reported >= _REPORT_S:
                reported = now
                place = {"table": view.name, "rows": scrubbed.rows, "of_rows": scrubbed.of}
                say({**place, "tables": number, "of_tables": len(tables), "bytes": done})
            time.sleep(max(0.0, begun + done / bytes_per_second - now))
    unrepaired = sum(bool(view.record.damage) for view in reader.tables())
    say({"done": True, "bytes": done, "unrepaired": unrepaired})


def _until_damaged(scrubbed: TableScrub, say: Say) -> Iterator[int]:
    """The parts of one table up to the first damage, which is reported."""
    try:
        yield from scrubbed.run()
    except (RowsDamaged, JournalDamaged) as damaged:
        say({"damage": list(damaged.damage)})


def _say(line: dict[str, Any]) -> None:
    sys.stdout.buffer.write(orjson.dumps(line) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
