"""HTTP/1.1 messages, read whole and written as they were.

Chunked bodies are written with a Content-Length instead; every other header is
left as it is, Host above all, so that signatures stay right.
"""

import asyncio
from dataclasses import dataclass, replace

END = b"\r\n\r\n"
HOP = {"connection", "keep-alive", "transfer-encoding", "expect", "content-length"}
"""Headers that belong to one connection, or that are written anew."""


class Broken(Exception):
    """The other side went away in the middle of a message, or sent none of HTTP/1.1."""


@dataclass(frozen=True)
class Head:
    """A message's first line and its headers."""

    start: str
    headers: tuple[tuple[str, str], ...] = ()

    def get(self, name: str) -> str | None:
        """A header's value, whatever its capitals."""
        for known, value in self.headers:
            if known.lower() == name.lower():
                return value
        return None

    def without(self, name: str) -> "Head":
        """Copy the head without that header."""
        kept = tuple(pair for pair in self.headers if pair[0].lower() != name.lower())
        return replace(self, headers=kept)


@dataclass(frozen=True)
class Message:
    """A request or an answer. ``length``: its Content-Length if that isn't the body's."""

    head: Head
    body: bytes = b""
    length: int | None = None

    @property
    def status(self) -> int:
        """An answer's status."""
        return int(self.head.start.split(" ", 2)[1])

    def to_bytes(self, *, close: bool = False) -> bytes:
        """As it goes over the wire."""
        lines = [self.head.start]
        lines += [
            f"{name}: {value}" for name, value in self.head.headers if name.lower() not in HOP
        ]
        lines.append(f"Content-Length: {len(self.body) if self.length is None else self.length}")
        lines.append(f"Connection: {'close' if close else 'keep-alive'}")
        return "\r\n".join(lines).encode("latin-1") + END + self.body


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """The next message's head; None if the connection ended instead.

    :raises Broken: if it ended in the middle.
    """
    try:
        block = await reader.readuntil(END)
    except asyncio.IncompleteReadError as ended:
        if ended.partial:
            raise Broken("the connection ended in the middle of a head") from None
        return None
    start, *lines = block[: -len(END)].decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return Head(start, tuple((name.strip(), value.strip()) for name, _, value in pairs))


async def read_body(
    reader: asyncio.StreamReader, head: Head, *, until_end: bool = False, share: float = 1.0
) -> bytes:
    """The body that belongs to ``head``, or the first ``share`` of it if its length is known.

    ``until_end``: without a length it goes on to the end.

    :raises Broken: if the connection ended before.
    """
    try:
        if "chunked" in (head.get("Transfer-Encoding") or "").lower():
            return await _read_chunks(reader)
        length = head.get("Content-Length")
        if length is not None:
            return await reader.readexactly(int(int(length) * share))
    except asyncio.IncompleteReadError:
        raise Broken("the connection ended in the middle of a body") from None
    return await reader.read(-1) if until_end else b""


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        if size == 0:
            break
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":  # trailers
        pass
    return bytes(body)


async def read_answer(reader: asyncio.StreamReader, method: str) -> Message:
    """A server's answer to a request of ``method``; what it says before it (100) is left out.

    :raises Broken: if it doesn't come, or not whole.
    """
    while True:
        head = await read_head(reader)
        if head is None:
            raise Broken("no answer")
        answer = Message(head)
        if answer.status >= 200:
            break
    if method == "HEAD" or answer.status in (204, 304):
        return replace(answer, length=int(head.get("Content-Length") or 0))
    return replace(answer, body=await read_body(reader, head, until_end=True))
