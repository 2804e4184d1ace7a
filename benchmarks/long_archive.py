"""``python -m benchmarks.long_archive DIRECTORY [DIFFS [SECONDS]]``: an archive compacted for long.

One base, then so many diffs, 30 or SECONDS apart by their commit times (1,051,200 of 30 are a
year), each with four updates, written and merged by the program's own writer into a directory:
best one in memory. Then it is opened and read: as of its end, as of the middle of the middle, by
the command line as a user runs it, each the median of the rounds.
"""

import random
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import structlog

from laredo_archive.maintain import compact
from laredo_archive.storage.local import LocalDestination
from laredo_archive.write.table_archive import TableArchive
from laredo_model.checksum import StateChecksum
from laredo_model.column import Column
from laredo_model.line import Action, Change
from laredo_model.position import History, Position

COLUMNS = (
    Column("id", "int8", -1, False, 1, 1),
    Column("v", "text", -1, True, 2),
)
TABLE, PREFIX = "public.long", "long/"
ROWS = 20_000
UPDATES = 4
APART_SECONDS = 30
START = datetime(2025, 11, 1, tzinfo=UTC)
STEP = 16
ROUNDS = 3
_COMPACTED_EVERY = 20


class Table:
    """A table that is updated at random."""

    def __init__(self) -> None:
        self._chance = random.Random(16)
        self._versions = [0] * ROWS
        self.checksum = StateChecksum()
        self.checksum.add([self.line(row) for row in range(ROWS)])

    def line(self, row: int) -> bytes:
        """The row as it is now."""
        return b'{"id":%d,"v":"the value of version %d"}' % (row, self._versions[row])

    def rows(self) -> tuple[list[bytes], list[bytes]]:
        """All keys beside their lines, in key order."""
        ordered = sorted((b"%d" % row, self.line(row)) for row in range(ROWS))
        return [key for key, _ in ordered], [line for _, line in ordered]

    def update(self) -> list[Change]:
        """Some rows change; sorted by key."""
        changes = []
        for row in self._chance.sample(range(ROWS), UPDATES):
            old = self.line(row)
            self._versions[row] += 1
            new = self.line(row)
            self.checksum.remove([old])
            self.checksum.add([new])
            changes.append(Change(Action.UPDATE, b"%d" % row, old, new))
        return sorted(changes, key=lambda change: change.key)


def build(directory: Path, diffs: int, apart: timedelta) -> None:
    """Write the archive, and say what that took."""
    table, at, time_of = Table(), Position(STEP), START
    began, merges = time.process_time(), 0
    with TableArchive.open([LocalDestination(directory)], TABLE, key_prefix=PREFIX) as archive:
        with archive.snapshot(
            position=at,
            history=History(1, 1, 1),
            columns=COLUMNS,
            key_fields=["id"],
            formats=["jsonl"],
        ) as upload:
            upload.write(*table.rows())
            base = upload.finish(time_of)
        archive.commit_base(base, continues=False)
        largest = 0
        for number in range(1, diffs + 1):
            changes = table.update()
            before, at, time_of = at, Position(at + STEP), time_of + apart
            archive.commit_diff(
                changes,
                from_position=before,
                to_position=at,
                to_time=time_of,
                rows=table.checksum.rows,
                checksum=table.checksum.hex(),
                formats=["jsonl"],
                cancelled=0,
            )
            if number % _COMPACTED_EVERY == 0:
                while compact.merge_next(archive.merging, compact.LEVELS, formats=["jsonl"]):
                    merges += 1
                largest = max(largest, (directory / PREFIX / "manifest.json").stat().st_size)
    cpu = time.process_time() - began
    _say("diffs written", f"{diffs:,}, {merges:,} merges, {cpu / diffs * 1e3:.2f} ms CPU a diff")
    _say("artifacts", f"{len(archive.manifest.artifacts):,}")
    _say("manifest, largest and last", f"{largest:,}, {_manifest(directory):,} bytes")


def measure(directory: Path, diffs: int, apart: timedelta) -> None:
    """Open and read it as a user does."""
    archive = str(directory / PREFIX)
    # Between two of the smallest boundaries, in the middle of all.
    middle = (START + apart * (diffs // 2) + apart / 2).isoformat()
    for what, arguments in (
        ("ls --summary", ["ls", "--summary", archive]),
        ("rows as of the end", ["cat", archive]),
        ("rows as of the middle", ["cat", "--as-of", middle, archive]),
    ):
        taken = []
        for _ in range(ROUNDS):
            began = time.monotonic()
            subprocess.run(
                [Path(sys.executable).parent / "laredo-archive", *arguments],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            taken.append(time.monotonic() - began)
        _say(what, f"{median(taken):.2f} s")


def _manifest(directory: Path) -> int:
    return (directory / PREFIX / "manifest.json").stat().st_size


def _say(what: str, figure: str) -> None:
    sys.stdout.write(f"| {what} | {figure} |\n")
    sys.stdout.flush()


def main() -> None:
    """Build, measure, and leave the archive there for other readers."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    directory = Path(sys.argv[1])
    diffs = int(sys.argv[2]) if len(sys.argv) > 2 else 1_051_200
    apart = timedelta(seconds=int(sys.argv[3]) if len(sys.argv) > 3 else APART_SECONDS)
    if directory.exists():
        shutil.rmtree(directory)
    build(directory, diffs, apart)
    measure(directory, diffs, apart)


if __name__ == "__main__":
    main()
