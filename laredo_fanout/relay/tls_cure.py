"""Advice for the configuration when no TLS connection to the upstream can be made.

gRPC reports its TLS library's error, which names no key of the configuration.
"""

from __future__ import annotations

from laredo_fanout.relay.options import RelayOptions

_CLOSED = ("Socket closed", "Connection reset", "Broken pipe")
"""An upstream that refuses closes the connection without a reason."""


def with_cure(error: str, options: RelayOptions) -> str:
    """The error, followed by the cure if it is about TLS."""
    found = _cure(error, options)
    return f"{error}; {found}" if found else error


def _cure(error: str, options: RelayOptions) -> str:
    tls, keys = options.tls, f"sources.{options.source_name}.tls"
    closed = any(text in error for text in _CLOSED)
    if tls is None:
        return f"if {options.server} speaks TLS, give {keys}" if closed else ""
    signers = "the system's CAs have" if tls.ca is None else f"{tls.ca} has"
    cures = {
        "CERTIFICATE_VERIFY_FAILED": (
            f"{signers} not signed the certificate of {options.server}: let {keys}.ca be the file"
            " of the CA that did"
        ),
        "Hostname Verification": (
            f"the certificate of {options.server} is for another name: give that as"
            f" {keys}.server_name"
        ),
        "WRONG_VERSION_NUMBER": f"{options.server} doesn't speak TLS: remove {keys}, or correct"
        " the port",
        "security handshaker": f"a file can't be used: {keys}.key must be the key of {keys}.cert,"
        " both as PEM",
    }
    for text, cure in cures.items():
        if text in error:
            return cure
    if closed:
        return (
            f"if {options.server} asks for a client's certificate, give one that its"
            f" fanout.grpc.tls.client_ca has signed, as {keys}.cert and {keys}.key"
        )
    return ""
