"""The caller of a gRPC call: its address, its identity, and whose streams count together."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import unquote

_SHARED_PREFIX_V6 = 64
"""One IPv6 host usually has all addresses of such a network."""
_SHORT_NAMES = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
}


@dataclass(slots=True)
class Caller:
    """The client of a call, as its connection and metadata identify it."""

    peer: str
    #: The metadata of that name; "" where there is none.
    authorization: str
    #: Identifies the client certificate; "" where there is none.
    certificate: str
    #: The name that the client gives itself, known once its request is read.
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
        """True if it calls from this machine; through a proxy many clients may."""
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


def caller_from(
    address: tuple[str, int], authorization: str, certificate: Mapping[str, Any] | None
) -> Caller:
    """The caller at this TCP address; ``certificate`` is as `ssl.SSLSocket.getpeercert` has it."""
    host, port = address
    subject = _subject(certificate) if certificate else ""
    return Caller(
        peer=f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}",
        authorization=authorization,
        certificate=digest(subject.encode()) if subject else "",
    )


def _subject(certificate: Mapping[str, Any]) -> str:
    """As gRPC writes it (RFC 2253), so that one certificate is one identity by either way."""
    names = [pair for part in certificate.get("subject", ()) for pair in part]
    return ",".join(f"{_SHORT_NAMES.get(name, name)}={value}" for name, value in reversed(names))


def digest(secret: bytes) -> str:
    """A name for something that must not be shown, or is long."""
    return sha256(secret).hexdigest()[:16]
