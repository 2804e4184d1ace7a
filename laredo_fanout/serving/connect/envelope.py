"""Envelopes: each message of a stream is preceded by a byte of flags and its length.

https://connectrpc.com/docs/protocol#enveloped-message
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from laredo_fanout.serving.connect.codes import error_json
from laredo_fanout.serving.errors import BadRequest, Refused

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
