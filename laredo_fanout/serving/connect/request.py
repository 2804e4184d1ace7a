"""A Connect request: which call it makes, in which encoding, and the message in its body.

What fits no call is refused by HTTP's own statuses, everything else by an error of Connect's.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from laredo_fanout.serving.calls.request import MAX_REQUEST_BYTES
from laredo_fanout.serving.connect import envelope
from laredo_fanout.serving.connect.codes import Unsupported
from laredo_fanout.serving.errors import BadRequest
from laredo_fanout.wire import replication_pb2 as wire

_SERVICE = wire.DESCRIPTOR.services_by_name["LaredoReplicationService"]
_METHODS: Mapping[str, MethodDescriptor] = {
    f"/{_SERVICE.full_name}/{method.name}": method for method in _SERVICE.methods
}
MAX_BODY = MAX_REQUEST_BYTES + envelope.HEAD_BYTES
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

    name: str
    #: The call's name, such as ``Sync``.
    streaming: bool
    #: Whether the answer is a stream of enveloped messages.
    as_json: bool
    #: Whether request and answer are JSON instead of protobuf.
    takes: type[Message]
    gives: type[Message]

    @property
    def content_type(self) -> str:
        """Of request and answer."""
        codec = "json" if self.as_json else "proto"
        return f"application/connect+{codec}" if self.streaming else f"application/{codec}"


@dataclass(frozen=True, slots=True)
class Terms:
    """Options of a call, from its headers."""

    compressed: bool
    #: Whether the request is, or may be, gzip.
    timeout_s: float | None
    #: How long it waits for the end of the call.


def route(method: str, target: str, headers: Mapping[str, str]) -> CalledMethod:
    """The call that a request with this head makes; the headers' names are lower case.

    :raises HttpRefused: it makes none.
    """
    called = _METHODS.get(target.partition("?")[0])
    if called is None:
        raise HttpRefused(404, f"there is no such call; there are {', '.join(_METHODS)}", {})
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
        compressed, message = envelope.single(body)
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
        reason = f'content type "{content_type[:80]}": {" or ".join(known)} is meant'
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
        raise BadRequest(f"the message unpacked has more than {MAX_REQUEST_BYTES} bytes")
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
