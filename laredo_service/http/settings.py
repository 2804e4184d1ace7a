"""The ``http`` block of both programs' configurations, and the address that it exposes."""

import ipaddress
import os
import re
import socket
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from laredo_service.settings import Secret, Section
from laredo_service.settings.values import with_secret

# The address that a listener binds, and whether other machines can reach it.

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

    :raises OSError: if the address can't be bound.
    """
    family = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def local_url(host: str, port: int) -> str:
    """The URL by which a program of this machine reaches an HTTP listener on ``host``."""
    address = ip_address(host or EVERYWHERE)
    if address is not None and address.is_unspecified:
        host = "::1" if address.version == 6 else LOOPBACK
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


_TOKEN = re.compile(r"[!-~]{1,512}")
_NAME = re.compile(r"\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")


class HttpSettings(Section):
    """The address and port of the HTTP server, and the token that requests must carry."""

    host: str | None = None
    """Address to listen on. By default 127.0.0.1; with ``token`` every address."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of the HTTP side; 0: any free one."""
    token: Secret | None = None
    """Token that every request must have as ``Authorization: Bearer``, except those of ``public``.
    """
    token_file: Path | None = None
    """A file with the token alone, in place of ``token``."""
    public: tuple[Literal["health", "metrics"], ...] = ()
    """Groups of paths that need no token: ``health``, ``metrics``."""
    allowed_hosts: tuple[str, ...] = ()
    """Without a token: names that a request's Host may have, in addition to IP addresses, localhost
    and ``host``; ``.example.com`` includes all names below it."""

    @property
    def listening_host(self) -> str:
        """The address to bind."""
        return listening_host(self.host, protected=self.token is not None)

    @model_validator(mode="before")
    @classmethod
    def _token_from_file(cls, data: Any) -> Any:
        return with_secret(data, "token")

    @field_validator("token")
    @classmethod
    def _can_be_sent(cls, token: Secret | None) -> Secret | None:
        if token is not None and not _TOKEN.fullmatch(token.get_secret_value()):
            raise ValueError("a token is 1 to 512 visible ASCII characters, without spaces")
        return token

    @field_validator("allowed_hosts")
    @classmethod
    def _are_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f'"{name}" is not a name; write fanout or .example.com, without a port'
                )
        return names

    def warnings(self, key: str, danger: str) -> list[str]:
        """Warnings about an open listener, as ``path: text``.

        :param key: the block's configuration path.
        :param danger: what anyone who reaches an open listener can do.
        """
        if self.token is not None:
            return []
        cure = f"set {key}.token"
        found = warning(f"{key}.host", self.listening_host, danger, cure)
        return [] if found is None else [found]
