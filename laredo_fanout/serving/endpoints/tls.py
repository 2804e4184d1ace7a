"""The TLS files of the clients' ports, for gRPC and for Connect; read again when they change.

A new connection uses the files as they are then. While they can't be used, as a certificate and its
key are written one after the other, it uses the pair that was read before. Open connections stay.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import grpc
import structlog

from laredo_fanout.serving.errors import CannotListen
from laredo_fanout.serving.options import TlsFiles

log = structlog.get_logger(__name__)

T = TypeVar("T")

_Stamp = tuple[tuple[int, int, int], ...]


def grpc_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Credentials for gRPC from these files.

    :raises CannotListen: if a file can't be used; gRPC itself wouldn't name it.
    """
    followed = _WatchedFiles(files, _grpc_files)

    def fetch() -> Any:
        """Ask for the files at a handshake, in a thread of gRPC's; None: as before."""
        return followed.changed()

    return grpc.dynamic_ssl_server_credentials(
        _grpc_files(files),
        fetch,
        require_client_authentication=files.client_ca is not None,
    )


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """TLS context for asyncio; with a ``client_ca`` a client must show a certificate.

    :raises CannotListen: a file can't be used.
    """
    followed, context = _WatchedFiles(files, _context), _context(files)
    current = context

    def choose(connection: Any, *_: Any) -> None:
        nonlocal current
        current = followed.changed() or current
        connection.context = current

    # Called at each handshake, also without a name: authorities can't be taken out of a context.
    context.set_servername_callback(choose)
    return context


class _WatchedFiles(Generic[T]):
    """The state of the files on disk, to notice new ones that can be used."""

    def __init__(self, files: TlsFiles, read: Callable[[TlsFiles], T]) -> None:
        """:raises CannotListen: a file can't be used."""
        self._files = files
        self._read = read
        self._lock = threading.Lock()
        self._refused: _Stamp | None = None
        # First, as its error names the file that is missing.
        _context(files)
        self._used = self._stamp()

    def changed(self) -> T | None:
        """The files as ``read`` reads them, if they differ from the last good ones, and are good;
        else None."""
        with self._lock:
            try:
                stamp = self._stamp()
                if stamp in (self._used, self._refused):
                    return None
                _context(self._files)
                new = self._read(self._files)
                if self._stamp() != stamp:
                    return None  # They are being written; the next connection reads them.
            except (CannotListen, OSError) as error:
                self._refuse(error)
                return None
            self._used, self._refused = stamp, None
            log.info("certificates reloaded", cert=str(self._files.cert))
            return new

    def _refuse(self, error: Exception) -> None:
        try:
            stamp = self._stamp()
        except OSError:
            stamp = ()
        if stamp != self._refused:
            log.warning("new certificates not usable; former ones kept", error=str(error))
            self._refused = stamp

    def _stamp(self) -> _Stamp:
        files = self._files
        found = [p.stat() for p in (files.cert, files.key, files.client_ca) if p is not None]
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)


def _grpc_files(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(_pem(files.key, "key"), _pem(files.cert, "cert"))],
        root_certificates=None if files.client_ca is None else _pem(files.client_ca, "client_ca"),
    )


def _context(files: TlsFiles) -> ssl.SSLContext:
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
                f"fanout.grpc.tls.client_ca: {files.client_ca} contains no PEM certificate that can"
                f" be read: {error}"
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
