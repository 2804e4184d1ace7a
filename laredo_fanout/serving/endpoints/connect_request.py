"""A Connect request: call, encoding, messages in envelopes, and error codes.

A request that makes no call is refused by an HTTP status, any other by an error of Connect's.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import orjson
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from laredo_fanout.serving.call import MAX_REQUEST_BYTES, Caller
from laredo_fanout.serving.errors import MAX_DETAILS, BadRequest, Refused
from laredo_fanout.wire import replication_pb2 as wire

# Connect's error codes: their names, their HTTP statuses, and the JSON of an error.

_STATUSES = {
    "canceled": 499,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "aborted": 409,
    "out_of_range": 400,
    "unimplemented": 501,
    "unavailable": 503,
    "unauthenticated": 401,
}
_ANY_OTHER = 500


class DeadlinePassed(Refused):
    """The call took longer than its Connect-Timeout-Ms."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "client"


class Unsupported(Refused):
    """The request uses something of the protocol that this server doesn't have."""

    code = grpc.StatusCode.UNIMPLEMENTED


def name(refused: Refused) -> str:
    """The code's name in JSON; Connect spells ``canceled`` with one l."""
    return "canceled" if refused.code is grpc.StatusCode.CANCELLED else refused.code.name.lower()


def http_status(refused: Refused) -> int:
    """The HTTP status of a unary call that ends with this."""
    return _STATUSES.get(name(refused), _ANY_OTHER)


def error_json(refused: Refused) -> dict[str, Any]:
    """The error as Connect's JSON object."""
    return {"code": name(refused), "message": str(refused)[:MAX_DETAILS]}


# Envelopes: each message of a stream is preceded by a byte of flags and its length.
#
# https://connectrpc.com/docs/protocol#enveloped-message

HEAD_BYTES = 5
COMPRESSED = 1
END_STREAM = 2


def chunk(messages: Sequence[bytes]) -> bytes:
    """The messages in their envelopes, as one chunk of an HTTP/1.1 body (RFC 9112, 7.1)."""
    pieces = [b""]
    for message in messages:
        pieces += b"\0" + len(message).to_bytes(4, "big"), message
    pieces[0] = b"%x\r\n" % sum(map(len, pieces))
    pieces.append(b"\r\n")
    return b"".join(pieces)


def last_chunk(refused: Refused | None) -> bytes:
    """The end of a stream, with the error that ends it, as a chunk."""
    end = orjson.dumps({} if refused is None else {"error": error_json(refused)})
    head = bytes([END_STREAM]) + len(end).to_bytes(4, "big")
    return b"%x\r\n%b%b\r\n" % (len(end) + HEAD_BYTES, head, end)


def single(body: bytes) -> tuple[bool, bytes]:
    """Parse a request's body that is one message: its compression flag, and the message.

    :raises BadRequest: if it isn't exactly one enveloped message.
    """
    if len(body) < HEAD_BYTES:
        raise BadRequest(f"the body has {len(body)} bytes, an enveloped message has 5 and more")
    flags, length = body[0], int.from_bytes(body[1:HEAD_BYTES], "big")
    if flags & ~COMPRESSED:
        raise BadRequest(f"the message's envelope has flags {flags:#x}; expected 0 or 1")
    if length != len(body) - HEAD_BYTES:
        raise BadRequest(
            f"the body has {len(body) - HEAD_BYTES} bytes after the envelope's head, which"
            f" declares {length}: a call takes exactly one message"
        )
    return flags == COMPRESSED, body[HEAD_BYTES:]


_SERVICE = wire.DESCRIPTOR.services_by_name["LaredoReplicationService"]
_METHODS: Mapping[str, MethodDescriptor] = {
    f"/{_SERVICE.full_name}/{method.name}": method for method in _SERVICE.methods
}
MAX_BODY = MAX_REQUEST_BYTES + HEAD_BYTES
_TIMEOUT_DIGITS = 10
_IN_A_THREAD = 4 << 10
"""Bytes from which a message is translated from or into JSON in a thread."""


class HttpRefused(Exception):
    """The request makes no call of this service: it is answered by an HTTP status alone."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str]) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers


@dataclass(frozen=True, slots=True)
class CalledMethod:
    """The call that a request makes, and its encoding."""

    #: Such as ``Sync``.
    name: str
    #: Whether the answer is a stream of enveloped messages.
    streaming: bool
    #: Whether request and answer are JSON instead of protobuf.
    as_json: bool
    takes: type[Message]
    gives: type[Message]

    @property
    def content_type(self) -> str:
        """Content type of request and answer."""
        codec = "json" if self.as_json else "proto"
        return f"application/connect+{codec}" if self.streaming else f"application/{codec}"


@dataclass(frozen=True, slots=True)
class Terms:
    """Options of a call, from its headers."""

    #: Whether the request is gzip; of a stream, whether it may be.
    compressed: bool
    #: The longest wait for the end of the call, in seconds.
    timeout_s: float | None


def route(method: str, target: str, headers: Mapping[str, str]) -> CalledMethod:
    """The call that a request with this head makes; the headers' names are lower case.

    :raises HttpRefused: it makes none.
    """
    called = _METHODS.get(target.partition("?")[0])
    if called is None:
        raise HttpRefused(404, f"there is no such call; the calls are {', '.join(_METHODS)}", {})
    if method != "POST":
        raise HttpRefused(405, f"{called.name} is called by POST", {"Allow": "POST"})
    if "origin" in headers:
        # A page that a browser has open on this machine would reach a loopback port, too.
        raise HttpRefused(403, "browsers aren't served: the request has an Origin", {})
    streaming = bool(called.server_streaming)
    kind = "application/connect+" if streaming else "application/"
    return CalledMethod(
        name=called.name,
        streaming=streaming,
        as_json=_codec(headers.get("content-type", ""), kind) == "json",
        takes=GetMessageClass(called.input_type),
        gives=GetMessageClass(called.output_type),
    )


def terms(called: CalledMethod, headers: Mapping[str, str]) -> Terms:
    """The terms of the request's headers.

    :raises BadRequest: a header of Connect's makes no sense.
    :raises Unsupported: the request is compressed in a way that isn't known here.
    """
    version = headers.get("connect-protocol-version", "1")
    if version != "1":
        raise BadRequest(f'Connect-Protocol-Version is "{version[:40]}"; expected 1')
    compression = _compression(headers, streaming=called.streaming)
    return Terms(compression == "gzip", _timeout(headers.get("connect-timeout-ms")))


async def decode(called: CalledMethod, asked: Terms, body: bytes) -> bytes:
    """The protobuf message in the request's body.

    :raises BadRequest: there is none, or it is too long.
    """
    compressed, message = asked.compressed, body
    if called.streaming:
        compressed, message = single(body)
        if compressed and not asked.compressed:
            raise BadRequest("the message is compressed, and Connect-Content-Encoding is missing")
    if compressed:
        message = _gunzip(message)
    if not called.as_json:
        return message
    if len(message) < _IN_A_THREAD:
        return _from_json(called.takes, message)
    return await asyncio.to_thread(_from_json, called.takes, message)


async def encode(called: CalledMethod, message: bytes) -> bytes:
    """An answer's protobuf message in the call's encoding."""
    if not called.as_json:
        return message
    if len(message) < _IN_A_THREAD:
        return _to_json(called.gives, message)
    return await asyncio.to_thread(_to_json, called.gives, message)


def _codec(content_type: str, kind: str) -> str:
    given = content_type.partition(";")[0].strip().lower()
    known = [kind + "proto", kind + "json"]
    if given not in known:
        reason = f'content type "{content_type[:80]}": expected {" or ".join(known)}'
        raise HttpRefused(415, reason, {"Accept-Post": ", ".join(known)})
    return given.removeprefix(kind)


def _compression(headers: Mapping[str, str], *, streaming: bool) -> str:
    header = "connect-content-encoding" if streaming else "content-encoding"
    given = headers.get(header, "identity").strip().lower() or "identity"
    if given not in ("gzip", "identity"):
        raise Unsupported(f'unknown compression "{given[:40]}": supported are gzip and identity')
    return given


def _timeout(given: str | None) -> float | None:
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= _TIMEOUT_DIGITS):
        raise BadRequest(f'Connect-Timeout-Ms is "{given[:40]}": expected up to 10 digits')
    return int(given) / 1000


def _gunzip(packed: bytes) -> bytes:
    unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        # No more is unpacked than may be, however much there would be.
        message = unpacking.decompress(packed, MAX_REQUEST_BYTES + 1)
    except zlib.error as error:
        raise BadRequest(f"the message isn't gzip: {error}") from error
    if len(message) > MAX_REQUEST_BYTES:
        raise BadRequest(f"the unpacked message has more than {MAX_REQUEST_BYTES} bytes")
    if not unpacking.eof or unpacking.unused_data:
        raise BadRequest("the message's gzip is cut short, or something follows it")
    return message


def _from_json(kind: type[Message], text: bytes) -> bytes:
    try:
        message = json_format.Parse(text, kind(), ignore_unknown_fields=True)
    except (json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"not a {kind.DESCRIPTOR.name} in JSON: {error}") from error
    return message.SerializeToString()


def _to_json(kind: type[Message], message: bytes) -> bytes:
    return json_format.MessageToJson(kind.FromString(message), indent=None).encode()


# The exchange of a streaming Connect call: messages in envelopes, several of them in a write.

PACKED_BYTES = 64 << 10
"""Most bytes of several messages in one write, held in memory for a client that takes none."""


class Output(Protocol):
    """The connection's side of the call."""

    @property
    def full(self) -> bool:
        """True if the client's side has no room now."""
        ...

    def write(self, data: bytes) -> None:
        """Write at once, whether or not there is room."""
        ...

    async def room(self) -> None:
        """Wait until the client's side, or the socket's buffer and ours, have room for more."""
        ...

    def when_full(self, notify: Callable[[], None] | None) -> None:
        """Have `notify` called when there is no more room."""
        ...


class CallStream:
    """One streaming call over a connection, in protobuf or in JSON."""

    def __init__(self, connection: Output, called: CalledMethod, caller: Caller) -> None:
        self.caller = caller
        self._connection = connection
        self._called = called

    @property
    def direct(self) -> ProtoOutput | None:
        """The stream for writes that don't wait; a message in JSON may have to be made first."""
        return None if self._called.as_json else ProtoOutput(self._connection)

    def packed(self, messages: Sequence[bytes]) -> Iterator[bytes]:
        """Chunks that carry the messages, about `PACKED_BYTES` each; in JSON the messages."""
        if self._called.as_json:
            yield from messages
            return
        together: list[bytes] = []
        size = 0
        for message in messages:
            if together and size + len(message) > PACKED_BYTES:
                yield chunk(together)
                together, size = [], 0
            together.append(message)
            size += len(message) + HEAD_BYTES
        if together:
            yield chunk(together)

    async def send(self, message: bytes) -> None:
        """Send what `packed` made."""
        if self._called.as_json:
            message = chunk([await encode(self._called, message)])
        await self._connection.room()
        self._connection.write(message)
        await self._connection.room()


class ProtoOutput:
    """A call's stream in protobuf, for bytes that it shares with other calls."""

    framing = "connect+proto"

    def __init__(self, connection: Output) -> None:
        self._connection = connection
        self.write = connection.write
        self.when_full = connection.when_full

    def frame(self, messages: Sequence[bytes]) -> bytes:
        return chunk(messages)

    @property
    def full(self) -> bool:
        return self._connection.full
