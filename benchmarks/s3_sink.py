"""An S3 that throws bytes away: ``python -m benchmarks.s3_sink --port N [--delay SECONDS]``.

It keeps what is small (a manifest, a diff) and knows the size of the rest, so it takes a base
of any size and holds none of it; ``--delay`` is how long it thinks before each answer, as a
store at the other end of a network does. Neither signatures nor checksums are looked at.
"""

import asyncio
import hashlib
import itertools
from argparse import ArgumentParser
from dataclasses import dataclass
from email.utils import formatdate
from urllib.parse import parse_qs, unquote, urlsplit

KEPT_BYTES = 4 << 20
_CHUNK = 1 << 20
_XMLNS = "http://s3.amazonaws.com/doc/2006-03-01/"


@dataclass
class Request:
    method: str
    key: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    size: int
    body: bytes
    """Empty if it was too large to be kept."""


@dataclass
class Kept:
    size: int
    data: bytes
    etag: str


Answer = tuple[int, dict[str, str], bytes]


class Sink:
    """Objects of the store, by ``/bucket/key``."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._objects: dict[str, Kept] = {}
        self._parts: dict[str, int] = {}
        self._numbers = itertools.count(1)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while request := await self._read(reader, writer):
                await asyncio.sleep(self._delay)
                writer.write(_encoded(request, self._answer(request)))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _read(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Request | None:
        head = await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b""
        if not head:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines if line)
        }
        if headers.get("expect") == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        size = int(headers.get("content-length", 0))
        body = await _drained(reader, size)
        address = urlsplit(target)
        query = parse_qs(address.query, keep_blank_values=True)
        return Request(method, unquote(address.path), query, headers, size, body)

    def _answer(self, request: Request) -> Answer:
        if "uploads" in request.query:
            return self._begin_upload() if request.method == "POST" else _xml("Uploads", "")
        if "uploadId" in request.query:
            return self._part(request)
        if "list-type" in request.query:
            return _xml("ListBucketResult", "<IsTruncated>false</IsTruncated>")
        if request.method == "PUT":
            return self._put(request)
        return self._look(request)

    def _begin_upload(self) -> Answer:
        upload = f"upload-{next(self._numbers)}"
        self._parts[upload] = 0
        return _xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")

    def _part(self, request: Request) -> Answer:
        upload = request.query["uploadId"][0]
        if request.method == "PUT":
            self._parts[upload] += request.size
            return 200, {"ETag": f'"{next(self._numbers):032x}"'}, b""
        size = self._parts.pop(upload, 0)
        if request.method == "DELETE":
            return 204, {}, b""
        kept = self._keep(request.key, size, b"")
        return _xml("CompleteMultipartUploadResult", f"<ETag>{kept.etag}</ETag>")

    def _put(self, request: Request) -> Answer:
        known = self._objects.get(request.key)
        if request.headers.get("if-none-match") == "*" and known is not None:
            return _error(412, "PreconditionFailed")
        expected = request.headers.get("if-match")
        if expected is not None and known is None:
            return _error(404, "NoSuchKey")
        if expected is not None and known is not None and expected != known.etag:
            return _error(412, "PreconditionFailed")
        return 200, {"ETag": self._keep(request.key, request.size, request.body).etag}, b""

    def _keep(self, key: str, size: int, data: bytes) -> Kept:
        digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
        kept = self._objects[key] = Kept(size, data, f'"{digest}-{next(self._numbers)}"')
        return kept

    def _look(self, request: Request) -> Answer:
        if request.method == "DELETE":
            self._objects.pop(request.key, None)
            return 204, {}, b""
        kept = self._objects.get(request.key)
        if kept is None:
            return _error(404, "NoSuchKey")
        shown = {"ETag": kept.etag, "Last-Modified": formatdate(usegmt=True)}
        if request.method == "HEAD":
            return 200, {**shown, "Content-Length": str(kept.size)}, b""
        return 200, shown, kept.data


async def _drained(reader: asyncio.StreamReader, size: int) -> bytes:
    if size <= KEPT_BYTES:
        return await reader.readexactly(size)
    while size:
        size -= len(await reader.read(min(size, _CHUNK)))
    return b""


def _xml(name: str, content: str) -> Answer:
    text = f'<?xml version="1.0"?><{name} xmlns="{_XMLNS}">{content}</{name}>'
    return 200, {"Content-Type": "application/xml"}, text.encode()


def _error(status: int, code: str) -> Answer:
    return status, {}, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


def _encoded(request: Request, answer: Answer) -> bytes:
    status, headers, body = answer
    sent = {"Content-Length": str(len(body)), "Date": formatdate(usegmt=True), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    content = b"" if request.method == "HEAD" else body
    return f"HTTP/1.1 {status} -\r\n{lines}\r\n".encode() + content


async def _main(port: int, delay: float) -> None:
    server = await asyncio.start_server(Sink(delay).serve, "127.0.0.1", port, limit=4 * _CHUNK)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--delay", type=float, default=0.0)
    arguments = parser.parse_args()
    asyncio.run(_main(arguments.port, arguments.delay))
