"""The process that writes one periodic snapshot file of a table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from laredo_fanout.app.processes import store_process
from laredo_fanout.app.processes.store_process import Order, Report
from laredo_fanout.snapshots import Retention, take
from laredo_fanout.store.reader import StoreReader
from laredo_model import position

_NICENESS = 10


def snapshot(reader: StoreReader, order: Order) -> Iterator[Report]:
    """Write the snapshot, and remove those that the retention no longer keeps."""
    retention = Retention(order["keep_count"], order["max_age"])
    directory, within = Path(order["directory"]), order["verified_within"]
    taken = take(reader, order["table"], directory, retention, verified_within_s=within)
    yield {
        "done": True,
        "written": taken.written,
        "snapshot": {
            "snapshot_id": taken.snapshot.snapshot_id,
            "position": position.text(taken.snapshot.position),
            "sequence": taken.snapshot.sequence,
            "rows": taken.snapshot.rows,
            "size_bytes": taken.snapshot.size_bytes,
            "removed": len(taken.removed),
        },
    }


if __name__ == "__main__":
    sys.exit(store_process.run(snapshot, _NICENESS))
