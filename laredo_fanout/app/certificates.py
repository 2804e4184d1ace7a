"""The certificates that a server's configuration names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from laredo_fanout.config import Config
from laredo_service.certificates import Certificate


def configured(config: Config) -> list[Certificate]:
    """Those that the server shows, and those that it trusts."""
    return list(_configured(config))


def _configured(config: Config) -> Iterator[Certificate]:
    tls = config.fanout.grpc.tls
    if tls is not None:
        yield Certificate("fanout.grpc.tls.cert", tls.cert)
        yield from _authority("fanout.grpc.tls.client_ca", tls.client_ca)
    upstream = config.upstream
    if upstream is not None and upstream.tls is not None:
        key = f"sources.{config.source_name}.tls"
        if upstream.tls.cert is not None:
            yield Certificate(f"{key}.cert", upstream.tls.cert)
        yield from _authority(f"{key}.ca", upstream.tls.ca)


def _authority(name: str, path: Path | None) -> Iterator[Certificate]:
    if path is not None:
        yield Certificate(name, path, any_will_do=True)
