"""On which address a listener listens, and whether others than this machine reach it."""

import ipaddress
import os
import socket

LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"
DEFAULT_HOST_VARIABLE = "LAREDO_DEFAULT_HOST"
"""The environment variable that replaces the default host, where a network of its own is around
the program: the container image sets it. A configured ``host`` wins over it."""
_BACKLOG = 128


def listening_host(configured: str | None, *, protected: bool) -> str:
    """The address to listen on: what is configured, else the variable's, else a safe one.

    ``protected``: whether a token or TLS is asked for; then every address of the machine, without
    it only the machine itself.
    """
    if configured is not None:
        return configured
    return os.environ.get(DEFAULT_HOST_VARIABLE) or (EVERYWHERE if protected else LOOPBACK)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a listener on ``host``."""
    if host.lower() == "localhost":
        return True
    address = ip_address(host)
    return address is not None and address.is_loopback


def ip_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that ``text`` is; None for a name."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def warning(key: str, host: str, danger: str, cure: str) -> str | None:
    """What to warn of, as ``path: text``, if a listener that asks nobody who they are is reachable.

    :param key: the configuration path of the host, such as ``http.host``.
    :param danger: what whoever reaches it may do.
    :param cure: the setting that asks for a token.
    """
    if is_loopback(host):
        return None
    return f"{key}: whoever reaches {host or EVERYWHERE} {danger}; {cure}, or host = {LOOPBACK}"


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there, for this process alone.

    :raises OSError: if the address can't be had.
    """
    family = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def local_url(host: str, port: int) -> str:
    """Where a program of this machine finds an HTTP listener on ``host``."""
    address = ip_address(host or EVERYWHERE)
    if address is not None and address.is_unspecified:
        host = "::1" if address.version == 6 else LOOPBACK
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
