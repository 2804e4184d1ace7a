"""The address that a listener binds, and whether other machines can reach it."""

import ipaddress
import os
import socket

LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"
DEFAULT_HOST_VARIABLE = "LAREDO_DEFAULT_HOST"
"""The environment variable that replaces the default host where the program has a network of its
own: the container image sets it. A configured ``host`` wins over it."""
_BACKLOG = 128


def listening_host(configured: str | None, *, protected: bool) -> str:
    """The address to bind: the configured one, else the variable's, else a safe default.

    :param protected: whether a token or TLS is required; then the default is every address of the
        machine, without it the loopback address.
    """
    if configured is not None:
        return configured
    return os.environ.get(DEFAULT_HOST_VARIABLE) or (EVERYWHERE if protected else LOOPBACK)


def is_loopback(host: str) -> bool:
    """True if only this machine reaches a listener on ``host``."""
    if host.lower() == "localhost":
        return True
    address = ip_address(host)
    return address is not None and address.is_loopback


def ip_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """``text`` parsed as an IP address; None for a name."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def warning(key: str, host: str, danger: str, cure: str) -> str | None:
    """A warning, as ``path: text``, if other machines reach a listener without authentication.

    :param key: the configuration path of the host, such as ``http.host``.
    :param danger: what anyone who reaches it can do.
    :param cure: the setting that requires a token.
    """
    if is_loopback(host):
        return None
    return f"{key}: anyone who reaches {host or EVERYWHERE} {danger}; {cure}, or host = {LOOPBACK}"


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, for this process alone.

    :raises OSError: if the address can't be had.
    """
    family = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def local_url(host: str, port: int) -> str:
    """The URL by which a program of this machine reaches an HTTP listener on ``host``."""
    address = ip_address(host or EVERYWHERE)
    if address is not None and address.is_unspecified:
        host = "::1" if address.version == 6 else LOOPBACK
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
