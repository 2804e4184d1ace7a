"""The TLS files of the clients' ports: read and checked once, for gRPC and for Connect."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from laredo_fanout.serving.errors import CannotListen
from laredo_fanout.serving.options import TlsFiles


def grpc_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """What gRPC takes of them.

    :raises CannotListen: a file can't be used; gRPC itself wouldn't say which.
    """
    server_context(files)
    client_ca = None if files.client_ca is None else _pem(files.client_ca, "client_ca")
    return grpc.ssl_server_credentials(
        [(_pem(files.key, "key"), _pem(files.cert, "cert"))],
        root_certificates=client_ca,
        require_client_auth=client_ca is not None,
    )


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """What asyncio takes of them; with a ``client_ca`` a client must show a certificate.

    :raises CannotListen: a file can't be used.
    """
    for name in ("cert", "key", "client_ca"):
        if (path := getattr(files, name)) is not None:
            _pem(path, name)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.cert, files.key)
    except ssl.SSLError as error:
        raise CannotListen(
            f"fanout.grpc.tls.key: {files.key} isn't the key of {files.cert}: {error}"
        ) from error
    if files.client_ca is not None:
        try:
            context.load_verify_locations(files.client_ca)
        except ssl.SSLError as error:
            raise CannotListen(
                f"fanout.grpc.tls.client_ca: {files.client_ca} has no certificate: {error}"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _pem(path: Path, name: str) -> bytes:
    try:
        pem = path.read_bytes()
    except OSError as error:
        raise CannotListen(f"fanout.grpc.tls.{name}: {path}: {error.strerror}") from error
    if b"-----BEGIN" not in pem:
        raise CannotListen(f"fanout.grpc.tls.{name}: {path} is not a PEM file")
    return pem
