"""A copy that is killed at every one of its steps, and begun again.

    python -m tests.support.archive.killed_copy DIRECTORY

Each time: with kill -9 at the first point, then at the second, and so on through
all of them. After each kill the target has no manifest or a whole one; the next
copy goes on and ends with what the source is.
"""

import os
import shutil
import signal
import sys
from datetime import timedelta
from pathlib import Path

import structlog

from laredo_archive.maintain.copy import Copied, copy
from laredo_archive.maintain.verify import verify
from laredo_archive.manifest.object_keys import MANIFEST
from laredo_archive.read import location
from laredo_archive.reader import Archive
from laredo_archive.storage.local import UNFINISHED, LocalDestination
from tests.support.archive.archiving import ONE, TABLE, TWO, anybodys, diffed, opened, rebased
from tests.support.archive.forked_child import in_child


def make(source: Path) -> None:
    with opened([LocalDestination(source)]) as writer:
        rebased(writer, 10, ONE, continues=False)
        diffed(writer, 10, 20, ONE, TWO)


def copied(source: Path, target: Path) -> Copied:
    return copy(location.find(str(source / TABLE)), location.parse(str(target / TABLE)))


def look(source: Path, target: Path) -> None:
    """At any moment: no manifest, or the whole archive."""
    if (target / TABLE / MANIFEST).exists():
        archive = Archive.at(str(target / TABLE))
        assert archive.manifest.head == Archive.at(str(source / TABLE)).manifest.head
        assert verify(archive).problems == []


def kill_everywhere(directory: Path) -> int:
    """Kill a copy at each of its points; return their number."""
    source, target = directory / "from", directory / "to"
    make(source)
    for point in range(1, 1000):
        shutil.rmtree(target, ignore_errors=True)
        status = in_child(lambda: copied(source, target), point)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert killed or status == 0, f"at point {point} it failed by itself"
        look(source, target)
        if not killed:
            return point - 1
        done = copied(source, target)
        assert done.tally.copied + done.tally.adopted + done.kept == 2
        look(source, target)
        destination = LocalDestination(target)
        named = {entry.key for entry in done.manifest.named()} | {f"{TABLE}/{MANIFEST}"}
        assert {info.key for info in destination.list("")} == named
        destination.collect_unfinished("", timedelta(seconds=-1), anybodys)
        left = [path for path in target.rglob(f"{UNFINISHED}*") if path.is_file()]
        assert not left, f"left behind after a kill at point {point}: {left}"
    raise AssertionError("it never came to its end")


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    print(kill_everywhere(Path(sys.argv[1])))
