"""A writer on two destinations that goes on from wherever the one before was killed.

    python -m tests.archive.write.killed_writer write DIRECTORY PLACE...
    python -m tests.archive.write.killed_writer kill-at POINTS DIRECTORY PLACE...

The second runs the first in child processes, with kill -9 at one point of the
commit after the other: ``POINTS`` are their numbers (``3,17``), or ``all``. After
each kill it looks at what is there, lets another writer finish, and looks again.
A place is a directory or ``s3://bucket/prefix/?endpoint=URL``; ``{}`` in it becomes
the point's number. ``DIRECTORY`` is where the writer says what it was promised.
"""

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path

import structlog

from laredo_archive.maintain import compact
from laredo_archive.maintain.collect import collect
from laredo_archive.manifest import merged
from laredo_archive.storage.s3 import upload
from laredo_archive.write.table_archive import TableArchive
from laredo_model.position import Position
from tests.support.archive.archiving import (
    AT_ONCE,
    DAY,
    MORNING,
    ONE,
    PREFIX,
    TABLE,
    THREE,
    TWO,
    base_of,
    diffed,
    rebased,
)
from tests.support.archive.forked_child import in_child
from tests.support.archive.inspection import (
    assert_nothing_left_over,
    assert_true,
    destination_at,
    manifest_of,
    read_descriptions,
    unfinished,
)

TRUTH = {10: ONE, 20: TWO, 30: THREE, 50: ONE, 60: TWO}
AFTER = {10: 20, 20: 30, 30: 50, 50: 60}
ACKNOWLEDGED = "acknowledged"
FORMATS = ("jsonl", "protobuf")
PART_BYTES = 60
"""Small, so that the smallest objects have parts, where there are any."""


def write(directory: Path, places: Sequence[str]) -> None:
    """From wherever it stands to position 60 of epoch 3, then collect."""
    upload.PART_BYTES = PART_BYTES
    merged.LISTED_AT_MOST = 1
    destinations = [destination_at(place) for place in places]
    with TableArchive.open(
        destinations, TABLE, key_prefix=PREFIX, keep_epochs=1, sinks=["arn:sink"]
    ) as archive:
        while step(archive):
            with (directory / ACKNOWLEDGED).open("a") as out:
                assert archive.head is not None
                out.write(f"{archive.head.epoch} {archive.head.position}\n")
    for place in destinations:
        for _ in range(3):
            collect(place, TABLE, key_prefix=PREFIX, policy=AT_ONCE)


def step(archive: TableArchive) -> bool:
    """The next thing to do; False when there is nothing more."""
    head = archive.head
    if head is None:
        rebased(archive, 10, ONE, continues=False, formats=FORMATS)
        return True
    for artifact in archive.notices.outstanding("arn:sink", archive.manifest):  # type: ignore[arg-type]
        archive.notices.mark_notified("arn:sink", artifact)
    state = TRUTH[head.position]
    if (head.position, head.epoch) == (20, 1):
        base = base_of(archive, 20, state, formats=FORMATS)
        diffed(archive, 20, 30, state, THREE)
        archive.commit_base(base, continues=True)
    elif head.position == 30 and head.epoch == 1:
        rebased(archive, 30, state, formats=FORMATS)
    elif head.position == 30 and (head.seen_position or 0) < 40:
        archive.see(Position(40))
    elif head.position in AFTER:
        end = AFTER[head.position]
        # A day later, so that what came before is to be merged.
        time = MORNING + DAY if end == 60 else MORNING
        diffed(archive, head.position, end, state, TRUTH[end], to_time=time)
    elif head.epoch < 3 and compact.merge_next(archive.merging, [DAY], formats=FORMATS):
        pass
    elif head.epoch < 3:
        rebased(archive, 60, state, formats=FORMATS)
    else:
        return False
    return True


def look(directory: Path, places: Sequence[str], *, finished: bool) -> None:
    """Check the invariants of any moment, and if ``finished``, those of the end."""
    acknowledged = directory / ACKNOWLEDGED
    least = (0, 0)
    if acknowledged.exists():
        lines = acknowledged.read_text().splitlines()
        least = max(tuple(map(int, line.split())) for line in lines)
    heads = set()
    for where in places:
        place = destination_at(where)
        manifest = manifest_of(place)
        if manifest is None:
            assert least == (0, 0)
            continue
        assert (manifest.head or (0, 0)) >= least, "what was acknowledged is gone"
        heads.add(manifest.head)
        assert_true(place, manifest, TRUTH.__getitem__)
        if finished:
            assert_nothing_left_over(place, manifest)
            assert unfinished(where) == []
    if finished:
        assert heads == {(3, 60)}


def kill_at(points: Iterable[int], directory: Path, templates: Sequence[str]) -> int:
    """The last of the points that it came to."""
    reached = 0
    read_descriptions()
    for point in points:
        (directory / ACKNOWLEDGED).unlink(missing_ok=True)
        places = [template.replace("{}", f"{point}") for template in templates]
        status = in_child(lambda: write(directory, places), point)  # noqa: B023
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert killed or status == 0, f"at point {point} it failed by itself"
        look(directory, places, finished=not killed)
        if not killed:
            break
        reached = point
        again = in_child(lambda: write(directory, places), None)  # noqa: B023
        assert again == 0, f"after a kill at point {point}"
        look(directory, places, finished=True)
    return reached


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    command, *arguments = sys.argv[1:]
    if command == "write":
        write(Path(arguments[0]), arguments[1:])
    else:
        which, where, *named = arguments
        numbers = count(1) if which == "all" else map(int, which.split(","))
        print(kill_at(numbers, Path(where), named))
