"""Destinations on one S3 server, each in a prefix of its own."""

from itertools import count
from typing import Any

from laredo_archive.aws.clients import AwsClients, Called
from laredo_archive.storage.s3.bucket import S3Location
from laredo_archive.storage.s3.destination import S3Destination
from tests.support.aws import AwsServer

_numbers = count(1)


class S3Maker:
    """Makes destinations on one server, each in a prefix of its own, and notes their requests."""

    def __init__(self, server: AwsServer) -> None:
        self.server = server
        self.called: list[Called] = []
        self._clients = AwsClients(on_call=self.called.append)
        self._bucket: str | None = None

    @property
    def bucket(self) -> str:
        if self._bucket is None:
            self._bucket = self.server.new_bucket()
        return self._bucket

    def __call__(self, **more: Any) -> S3Destination:
        """``more``: of the place; ``pause`` is of the destination."""
        pause = more.pop("pause", lambda *_: None)
        more.setdefault("endpoint", self.server.endpoint)
        more.setdefault("addressing", "path")
        more.setdefault("bucket", self.bucket)
        more.setdefault("prefix", f"test {next(_numbers):05}/é=ü+%25")
        return S3Destination(S3Location(**more), self._clients, pause)
