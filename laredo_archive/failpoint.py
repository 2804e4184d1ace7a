"""Named points of the commit at which a test can end the process.

Off unless LAREDO_FAILPOINT is set when the process starts; then a call costs
one comparison. ``LAREDO_FAILPOINT=NAME`` kills the process with SIGKILL when it
first reaches NAME, ``NAME:3`` the third time, ``*:17`` at the 17th point of any
name; ``LAREDO_FAILPOINT=trace:FILE`` appends each name to FILE instead.
"""

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

VARIABLE = "LAREDO_FAILPOINT"


def _kill_at(wanted: str, count: int) -> Callable[[str], None]:
    reached: Counter[str] = Counter()
    turn = threading.Lock()

    def count_down(name: str) -> None:
        with turn:
            reached.update((name, "*"))
            if reached[wanted] == count and wanted in (name, "*"):
                os.kill(os.getpid(), signal.SIGKILL)

    return count_down


def _trace_to(file: Path) -> Callable[[str], None]:
    def trace(name: str) -> None:
        with file.open("a") as out:
            out.write(f"{name}\n")

    return trace


def _action(setting: str) -> Callable[[str], None] | None:
    if not setting:
        return None
    name, _, argument = setting.partition(":")
    if name == "trace":
        return _trace_to(Path(argument))
    return _kill_at(name, int(argument or 1))


_reached = _action(os.environ.get(VARIABLE, ""))


def reach(name: str) -> None:
    """Note that the process has come to the point ``name``: it may end here."""
    if _reached is not None:
        _reached(name)
