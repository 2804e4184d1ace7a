"""How many connections an endpoint may take: what the process's file descriptors allow."""

from __future__ import annotations

import resource

_UNLIMITED = 1 << 30


def most_connections() -> int:
    """Half of the descriptors that this process may have: the others are for spools and archives.

    gRPC itself waits, and says so in the log, where there is no descriptor for a connection; the
    Connect endpoint closes a connection beyond them at once.
    """
    may_have, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if may_have == resource.RLIM_INFINITY else may_have // 2
