"""A writer on two local directories that goes on from wherever the one before was killed.

    python -m tests.archive.killed_writer write DIRECTORY
    python -m tests.archive.killed_writer kill-everywhere DIRECTORY

The second runs the first in child processes, with kill -9 at the first point of
the commit, then at the second, and so on through all of them; after each kill
it looks at what is on disk, lets another writer finish, and looks again.
"""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import structlog

from laredo_archive import chain, codec, failpoint, manifest_parser
from laredo_archive.commit import TableArchive
from laredo_archive.garbage import Policy, collect
from laredo_archive.local import UNFINISHED, LocalDestination
from laredo_model.change import Action
from laredo_model.position import Position
from tests.archive.archiving import (
    MANIFEST,
    ONE,
    TABLE,
    THREE,
    TWO,
    base_of,
    diffed,
    rebased,
)
from tests.archive.simulation.truth import COLUMNS, State

TRUTH = {10: ONE, 20: TWO, 30: THREE, 50: ONE}
AFTER = {10: 20, 20: 30, 30: 50}
DIRECTORIES = ("one", "other")
ACKNOWLEDGED = "acknowledged"
FORMATS = ("jsonl", "protobuf")


def destinations(directory: Path) -> list[LocalDestination]:
    return [LocalDestination(directory / name) for name in DIRECTORIES]


def write(directory: Path) -> None:
    """From wherever it stands to position 50 of epoch 3, then collect."""
    places = destinations(directory)
    with TableArchive.open(places, TABLE, keep_epochs=1, sinks=["arn:sink"]) as archive:
        while step(archive):
            with (directory / ACKNOWLEDGED).open("a") as out:
                assert archive.head is not None
                out.write(f"{archive.head.epoch} {archive.head.position}\n")
    at_once = Policy(cut_off=timedelta(seconds=-1), grace=timedelta(seconds=-1))
    for place in places:
        for _ in range(3):
            collect(place, TABLE, policy=at_once)


def step(archive: TableArchive) -> bool:
    """The next thing to do; False when there is nothing more."""
    head = archive.head
    if head is None:
        rebased(archive, 10, ONE, continues=False, formats=FORMATS)
        return True
    for artifact in archive.notices.outstanding("arn:sink", archive.manifest):  # type: ignore[arg-type]
        archive.notices.tell("arn:sink", artifact)
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
        diffed(archive, head.position, end, state, TRUTH[end])
    elif head.epoch < 3:
        rebased(archive, 50, state, formats=FORMATS)
    else:
        return False
    return True


def look(directory: Path, *, finished: bool) -> None:
    """What must be true on disk at any moment, and what more at the end."""
    acknowledged = directory / ACKNOWLEDGED
    least = (0, 0)
    if acknowledged.exists():
        lines = acknowledged.read_text().splitlines()
        least = max(tuple(map(int, line.split())) for line in lines)
    heads = set()
    for place in destinations(directory):
        found = place.get(MANIFEST)
        if found is None:
            assert least == (0, 0)
            continue
        manifest = manifest_parser.parse(found.data, place.uri)
        assert list(chain.check(manifest)) == []
        assert (manifest.head or (0, 0)) >= least, "what was acknowledged is gone"
        heads.add(manifest.head)
        states: dict[str, State] = {}
        for artifact in manifest.artifacts:
            for format_id, entry in artifact.formats.items():
                with closing(place.open(entry.key)) as file:
                    states[format_id] = folded(states.get(format_id, {}), artifact, format_id, file)
                assert states[format_id] == TRUTH[artifact.to_position]
        if finished:
            kept = {entry.key for entry in manifest.named()} | {MANIFEST}
            assert {info.key for info in place.list("")} == kept
            assert manifest.retired == ()
    if finished:
        assert heads == {(3, 50)}


def folded(state: State, artifact, format_id: str, file) -> State:  # type: ignore[no-untyped-def]
    if artifact.is_snapshot:
        rows = codec.read_snapshot(format_id, COLUMNS, file)
        return {key: line for keys, lines in rows for key, line in zip(keys, lines, strict=True)}
    state = dict(state)
    for change in codec.read_diff(format_id, COLUMNS, file):
        if change.action is Action.DELETE:
            del state[change.key]
        else:
            assert change.new is not None
            state[change.key] = change.new
    return state


def in_child(work: Callable[[], None], kill_at: int | None) -> int:
    """The child's wait status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    if kill_at is not None:
        failpoint._reached = failpoint._kill_at("*", kill_at)
    try:
        work()
    except BaseException:  # noqa: BLE001  # a forked child must not go on in its parent's code
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def kill_everywhere(directory: Path) -> int:
    """How many points there were."""
    for point in range(1, 10_000):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        status = in_child(lambda: write(directory), point)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert killed or status == 0, f"at point {point} it failed by itself"
        look(directory, finished=not killed)
        if not killed:
            return point - 1
        assert in_child(lambda: write(directory), None) == 0, f"after a kill at point {point}"
        look(directory, finished=True)
        left = [path for path in directory.rglob(f"{UNFINISHED}*") if path.is_file()]
        assert not left, f"left behind after a kill at point {point}: {left}"
    raise AssertionError("it never came to its end")


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    where = Path(sys.argv[2])
    if sys.argv[1] == "write":
        write(where)
    else:
        print(kill_everywhere(where))
