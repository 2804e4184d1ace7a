"""The caller of a gRPC call: its address, its identity, and whose streams count together."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import unquote

_SHARED_PREFIX_V6 = 64
"""One IPv6 host usually has all addresses of such a network."""


@dataclass(slots=True)
class Caller:
    """Who makes a call. `client_id`: its name for itself, known once its request is read.

    `authorization` is the metadata of that name; `certificate` identifies a client certificate;
    both are "" where there is none.
    """

    peer: str
    authorization: str
    certificate: str
    client_id: str = ""

    @property
    def host(self) -> str:
        """The address without the port; of IPv6 the network that one host has."""
        kind, _, rest = unquote(self.peer).partition(":")
        if kind not in ("ipv4", "ipv6"):
            return kind
        address = ipaddress.ip_address(rest.rpartition(":")[0].strip("[]").partition("%")[0])
        if address.version == 6 and not address.is_loopback:
            return str(ipaddress.ip_network((address, _SHARED_PREFIX_V6), strict=False))
        return str(address)

    @property
    def is_local(self) -> bool:
        """Whether it calls from this machine: many clients may, through a proxy."""
        return self.host in ("127.0.0.1", "::1", "unix")


def caller_of(context: Any) -> Caller:
    """The caller of this gRPC call."""
    metadata = dict(context.invocation_metadata() or ())
    given = metadata.get("authorization")
    subject = next(iter(context.auth_context().get("x509_subject", ())), b"")
    return Caller(
        peer=str(context.peer()),
        authorization=given if isinstance(given, str) else "",
        certificate=digest(bytes(subject)) if subject else "",
    )


def digest(secret: bytes) -> str:
    """A name for something that must not be shown, or is long."""
    return sha256(secret).hexdigest()[:16]
