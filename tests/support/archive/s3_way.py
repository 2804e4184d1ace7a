"""One prefix in S3, reached straight and through the fault proxy."""

from contextlib import closing
from dataclasses import replace

from laredo_archive.storage.destination import Upload
from laredo_archive.storage.s3.destination import S3Destination
from laredo_archive.storage.s3.upload import PART_BYTES
from tests.support.archive.s3_maker import S3Maker
from tests.support.aws import S3_ENDPOINT
from tests.support.faults.fault import Exchange, Fault, Rule
from tests.support.faults.http1 import Head
from tests.support.faults.proxy import FaultProxy

# What a real store takes is at least 5 MB a part; the test servers aren't as strict.
SMALL_PART_BYTES = PART_BYTES if S3_ENDPOINT else 64 << 10

LARGE = b"0123456789" * (SMALL_PART_BYTES // 9)
"""An object of two parts."""


class Way:
    """To one prefix: ``faulty`` goes through the proxy, ``direct`` past it."""

    def __init__(self, maker: S3Maker, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.faulty: S3Destination = maker(endpoint=proxy.endpoint)
        prefix = self.faulty.uri.removeprefix(f"s3://{maker.bucket}/")
        self.direct: S3Destination = maker(prefix=prefix)

    def meets(self, fault: Fault, operation: str = "*", **more: int | None) -> Rule:
        """From now on requests of that operation do; the first one only, unless told otherwise."""
        rule = Rule(fault, operation, **more)  # type: ignore[arg-type]
        self.proxy.add(rule)
        return rule

    def sent(self, operation: str) -> int:
        """Number of requests of that operation."""
        return len(self.proxy.requests(operation))

    def begun(self, key: str, data: bytes) -> Upload:
        """An upload that isn't finished."""
        upload = self.faulty.upload(key)
        upload.write(data)
        return upload

    def read(self, key: str) -> bytes | None:
        """Content of an object; None if there is none."""
        if self.direct.head(key) is None:
            return None
        with closing(self.direct.open(key)) as file:
            return file.read()


def ignoring(*headers: str) -> Fault:
    """A store that doesn't know these headers."""

    async def happen(exchange: Exchange) -> None:
        head: Head = exchange.request.head
        for header in headers:
            head = head.without(header)
        await exchange.respond(await exchange.forward(replace(exchange.request, head=head)))

    return Fault(f"ignores {', '.join(headers)}", happen)


IGNORES_ALL = ignoring("If-Match", "If-None-Match")


async def _in_2199(exchange: Exchange) -> None:
    answered = await exchange.forward()
    dated = (*answered.head.without("Date").headers, ("Date", "Tue, 01 Jan 2199 00:00:00 GMT"))
    await exchange.respond(replace(answered, head=replace(answered.head, headers=dated)))


IN_2199 = Fault("in 2199", _in_2199)
"""By the date of the store's answer."""
