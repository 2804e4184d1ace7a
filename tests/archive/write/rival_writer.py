"""One of several processes that want to write the same archive.

    python -m tests.archive.write.rival_writer LAST_POSITION PLACE...

A place is a directory or ``s3://bucket/prefix/?endpoint=URL``. Exit code 3: fenced.
The table at position P has one row that says P.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import structlog

from laredo_archive.errors import CommitUnavailable, Fenced
from laredo_archive.write.table_archive import TableArchive
from tests.support.archive.archiving import PREFIX, TABLE, diffed, rebased, rows
from tests.support.archive.inspection import destination_at
from tests.support.archive.truth import State

FENCED = 3
STEP = 10
PAUSE_S = 0.02


def truth(position: int) -> State:
    return rows((1, f"{position}"))


def step(archive: TableArchive) -> None:
    if archive.head is None:
        rebased(archive, STEP, truth(STEP), continues=False)
    else:
        start = archive.head.position
        diffed(archive, start, start + STEP, truth(start), truth(start + STEP))


def write(last: int, places: Sequence[str]) -> int:
    try:
        with TableArchive.open(
            [destination_at(place) for place in places], TABLE, key_prefix=PREFIX
        ) as archive:
            while archive.head is None or archive.head.position < last:
                # Who is fenced without knowing finds its uploads dropped by the next one.
                with suppress(CommitUnavailable):
                    step(archive)
                # A writer commits at its interval. Without a pause a claim may lose each of its
                # attempts on a busy machine: the program tries again, this one ends.
                time.sleep(PAUSE_S)
    except Fenced as fenced:
        print(fenced)
        return FENCED
    return 0


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    sys.exit(write(int(sys.argv[1]), sys.argv[2:]))
