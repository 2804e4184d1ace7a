"""The connections that each port may have: shares of the process's file descriptors.

With both ports they are three quarters of the descriptors at most, so that spools, archives and the
store always find one.
"""

from __future__ import annotations

import resource

_UNLIMITED = 1 << 30


def connect_connections() -> int:
    """Half of the descriptors: each client has a connection of its own."""
    return _share(2)


def grpc_connections(*, alone: bool) -> int:
    """Half of the descriptors, or a quarter if there is a Connect port: streams share connections.

    gRPC closes a connection beyond them at once.
    """
    return _share(2 if alone else 4)


def _share(parts: int) -> int:
    may_have, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if may_have == resource.RLIM_INFINITY else may_have // parts
