"""Binds the server's ports: the one that all serving processes share, and HTTP's."""

from __future__ import annotations

import asyncio
import errno
import socket

from laredo_fanout.errors import FanoutError
from laredo_service.http import settings

_PATIENCE = 3.0


class ListenAddressTaken(FanoutError):
    """An address that is configured can't be listened on."""

    def __init__(self, host: str, port: int, key: str, why: str) -> None:
        super().__init__(f"can't listen on {host}:{port} ({key}): {why}")


async def reserve(host: str, port: int, key: str) -> socket.socket:
    """Bind (without listening), so that the port stays ours while serving processes are restarted.

    Serving processes join with SO_REUSEPORT, which two servers of one user could do
    by accident too: so first the port is tried alone. The serving processes of a
    server that was killed need a moment to notice: it is tried for three seconds.

    :param key: the configuration path, for the message.
    :raises ListenAddressTaken: if another process listens there.
    """
    deadline = asyncio.get_running_loop().time() + _PATIENCE
    while True:
        try:
            family, _, _, _, address = (
                await asyncio.get_running_loop().getaddrinfo(
                    host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )
            )[0]
            return _bound(family, address)
        except OSError as taken:
            late = asyncio.get_running_loop().time() >= deadline
            if late or taken.errno != errno.EADDRINUSE:
                raise ListenAddressTaken(host, port, key, taken.strerror or str(taken)) from taken
            await asyncio.sleep(0.05)


def listen(host: str, port: int, key: str) -> socket.socket:
    """Listen at the address, for this process alone.

    :param key: the configuration path, for the message.
    :raises ListenAddressTaken: if it can't.
    """
    try:
        return settings.listen(host, port)
    except OSError as taken:
        raise ListenAddressTaken(host, port, key, taken.strerror or str(taken)) from taken


def _bound(family: int, address: tuple[object, ...]) -> socket.socket:
    with socket.socket(family, socket.SOCK_STREAM) as alone:
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        alone.bind(address)
        chosen = alone.getsockname()
    shared = socket.socket(family, socket.SOCK_STREAM)
    shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        shared.bind(chosen)
    except OSError:
        shared.close()
        raise
    return shared
