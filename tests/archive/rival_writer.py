"""One of several processes that want to write the same archive.

    python -m tests.archive.rival_writer DIRECTORY LAST_POSITION

Exit code 3: fenced. The table at position P has one row that says P.
"""

import sys
from pathlib import Path

import structlog

from laredo_archive.commit import TableArchive
from laredo_archive.errors import CommitUnavailable, Fenced
from laredo_archive.local import LocalDestination
from tests.archive.archiving import TABLE, diffed, rebased, rows
from tests.archive.simulation.truth import State

FENCED = 3
STEP = 10


def truth(position: int) -> State:
    return rows((1, f"{position}"))


def write(directory: Path, last: int) -> int:
    places = [LocalDestination(directory / name) for name in ("one", "other")]
    try:
        with TableArchive.open(places, TABLE) as archive:
            if archive.head is None:
                rebased(archive, STEP, truth(STEP), continues=False)
            while archive.head is not None and archive.head.position < last:
                start = archive.head.position
                try:
                    diffed(archive, start, start + STEP, truth(start), truth(start + STEP))
                except CommitUnavailable:
                    archive.settle()
    except Fenced as fenced:
        print(fenced)
        return FENCED
    return 0


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    sys.exit(write(Path(sys.argv[1]), int(sys.argv[2])))
