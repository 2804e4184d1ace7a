"""Work in a forked child that is killed at a failpoint."""

import os
import sys
from collections.abc import Callable

from laredo_archive import failpoint


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
