"""The process of one periodic snapshot: ``python -m ...process BEAT_FD LOG_FORMAT LOG_LEVEL``.

Its order comes as a line on stdin, the outcome goes to stdout, both JSON. It
ends when the main process does: a server that has ended needs no snapshot, and the snapshot's read
transaction would keep old pages of the next server's store.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import orjson

from laredo_fanout.app import logs
from laredo_fanout.snapshots import Retention, SnapshotError, TakenSnapshot, take
from laredo_fanout.store.errors import RowsDamaged, StoreError
from laredo_fanout.store.reader import StoreReader
from laredo_fanout.watchdog import beat
from laredo_model import position

FAILED = 1
# Clients that wait for a change come first.
_NICENESS = 10


def main() -> int:
    beat_fd, log_format, level = sys.argv[1:]
    beat(int(beat_fd))
    logs.configure(logs.LogSettings(log_format, level))
    # A reload is for the main process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.nice(_NICENESS)
    order = orjson.loads(sys.stdin.buffer.readline())
    try:
        answer, code = _answer(_taken(order)), 0
    except (SnapshotError, StoreError) as error:
        answer, code = {"error": str(error)}, FAILED
        if isinstance(error, RowsDamaged):
            answer["damage"] = list(error.damage)
    sys.stdout.buffer.write(orjson.dumps(answer))
    sys.stdout.buffer.flush()
    return code


def _taken(order: dict[str, Any]) -> TakenSnapshot:
    reader = StoreReader.open(Path(order["state"]))
    try:
        retention = Retention(order["keep_count"], order["max_age"])
        return take(
            reader,
            order["table"],
            Path(order["directory"]),
            retention,
            verified_within_s=order["verified_within"],
        )
    finally:
        reader.close()


def _answer(taken: TakenSnapshot) -> dict[str, Any]:
    snapshot = taken.snapshot
    return {
        "snapshot_id": snapshot.snapshot_id,
        "position": position.text(snapshot.position),
        "sequence": snapshot.sequence,
        "rows": snapshot.rows,
        "size_bytes": snapshot.size_bytes,
        "written": taken.written,
        "removed": len(taken.removed),
    }


if __name__ == "__main__":
    sys.exit(main())
