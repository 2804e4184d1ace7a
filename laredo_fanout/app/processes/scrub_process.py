"""The process that compares the whole store with its seals and checksums, once."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from laredo_fanout.app.processes import store_process
from laredo_fanout.app.processes.store_process import Order, Report, damage_report
from laredo_fanout.store.errors import JournalDamaged, RowsDamaged
from laredo_fanout.store.reader import StoreReader
from laredo_fanout.store.scrub import TableScrub

_NICENESS = 19
_REPORT_S = 1.0


def scrub(reader: StoreReader, order: Order) -> Iterator[Report]:
    """Scrub every table that clients see, at the order's rate in bytes per second.

    A table whose damage is known is passed over until it is repaired.
    """
    tables = [view for view in reader.tables() if view.shown]
    begun, done, reported = time.monotonic(), 0, 0.0
    for number, view in enumerate(tables):
        scrubbed = TableScrub(reader, view.id)
        try:
            for size in scrubbed.run():
                done += size
                now = time.monotonic()
                if now - reported >= _REPORT_S:
                    reported = now
                    place = {"table": view.name, "rows": scrubbed.rows, "of_rows": scrubbed.of}
                    yield {**place, "tables": number, "of_tables": len(tables), "bytes": done}
                time.sleep(max(0.0, begun + done / order["bytes_per_second"] - now))
        except (RowsDamaged, JournalDamaged) as damaged:
            yield damage_report(damaged)
    unrepaired = sum(bool(view.record.damage) for view in reader.tables())
    yield {"done": True, "bytes": done, "unrepaired": unrepaired}


if __name__ == "__main__":
    sys.exit(store_process.run(scrub, _NICENESS))
