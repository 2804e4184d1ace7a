"""Calls of the replication service as no honest client makes them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from google.protobuf import struct_pb2

from laredo_fanout.serving.service import SERVICE
from laredo_fanout.wire import replication_pb2 as wire
from tests.fuzz.mutation import mutated

METHODS = ("Sync", "FetchSnapshot", "ListSnapshots", "GetReplicationStatus")
Metadata = tuple[tuple[str, str | bytes], ...]

_TEXTS = (
    "public", "t", "public.t", "", ".", "..", "../../etc/passwd", "t\0", "\u2028", "é" * 5000,
    "<b>x</b>", "\x1b[2J", "%s", "${HOME}", "pg_catalog", "pg_class", "id", "v", '"t"', "t'--",
    "0/0", "FFFFFFFF/FFFFFFFF", "FFFFFFFFF/0", "0/1800000", "-1/0", "16/B374D848", "1:1:1",
    "18446744073709551615:4294967295:4294967295", "9" * 5000, "batch/json.v1", "boundary.v1",
    "out-of-order.v1", "public.t@0_1800000", "public.t/../../x", "x" * 100_000,
)  # fmt: skip
_NUMBERS = (0, 1, -1, 2**31, 2**63 - 1, -(2**63), 10**6)


def request(draw: random.Random, method: str) -> bytes:
    """Bytes for this method: a request with extreme fields, a mutated one, or no request."""
    match draw.randrange(10):
        case 0:
            return draw.randbytes(draw.choice((0, 1, 2, 10, 300, 50_000)))
        case 1:
            # A field that nobody knows, of a length that may not be there.
            return _request(draw, method) + b"\xfa\x7f" + draw.choice((b"\x01x", b"\x7f", b""))
        case 2 | 3 | 4:
            return mutated(draw, _request(draw, method), (b"\xff\xfe", b"\xed\xa0\x80", b"public"))
        case _:
            return _request(draw, method)


def _request(draw: random.Random, method: str) -> bytes:
    def text(usual: str) -> str:
        return usual if draw.randrange(3) else draw.choice(_TEXTS)

    if method == "FetchSnapshot":
        found: Any = wire.FetchSnapshotRequest(snapshot_id=draw.choice(_TEXTS))
    elif method == "ListSnapshots":
        limit = draw.choice((0, 1, -1, 2**31 - 1, -(2**31)))
        found = wire.ListSnapshotsRequest(schema=text("public"), table=text("t"), limit=limit)
    elif method == "GetReplicationStatus":
        found = wire.GetReplicationStatusRequest(schema=text("public"), table=text("t"))
    else:
        found = wire.SyncRequest(
            schema=text("public"),
            table=text("t"),
            client_id=text("hostile"),
            last_known_sequence=draw.choice(_NUMBERS),
            last_snapshot_id=text(""),
            last_known_source_position=text(""),
            filters=_filters(draw),
            capabilities=draw.choices(("batch/json.v1", "boundary.v1", *_TEXTS), k=3),
            want_old=draw.random() < 0.5,
            history=text(""),
        )
    return bytes(found.SerializeToString())


def _filters(draw: random.Random) -> list[wire.FieldPredicate]:
    if draw.randrange(2):
        return []
    if not draw.randrange(20):
        return [wire.FieldPredicate()] * draw.choice((1000, 20_000))
    return [_predicate(draw) for _ in range(draw.choice((1, 1, 3, 50)))]


def _predicate(draw: random.Random) -> wire.FieldPredicate:
    predicate = wire.FieldPredicate(field=draw.choice(("id", "v", "j", *_TEXTS)))
    match draw.randrange(4):
        case 0:
            predicate.equals.CopyFrom(_value(draw))
        case 1:
            predicate.prefix = draw.choice(_TEXTS)
        case 2:
            values = getattr(predicate, "in").values
            values.extend(_value(draw) for _ in range(draw.choice((0, 1, 30, 2000))))
    return predicate


def _value(draw: random.Random, depth: int = 0) -> struct_pb2.Value:
    value = struct_pb2.Value()
    match draw.randrange(6 if depth < 20 else 4):
        case 0:
            numbers = (
                0.0,
                -0.0,
                1e308,
                5e-324,
                float("nan"),
                float("inf"),
                2.0**53 + 2,
                draw.random(),
            )
            value.number_value = draw.choice(numbers)
        case 1:
            value.string_value = draw.choice(_TEXTS)
        case 2:
            value.null_value = struct_pb2.NULL_VALUE
        case 3:
            pass
        case 4:
            value.list_value.values.append(_value(draw, depth + 1))
        case _:
            value.struct_value.fields[draw.choice(_TEXTS)].CopyFrom(_value(draw, depth + 1))
    return value


def metadata(draw: random.Random, token: str) -> Metadata:
    """The token in two calls of three; else a wrong one, or several, or much else."""
    right = ("authorization", f"Bearer {token}")
    if draw.randrange(3):
        return (right,)
    wrong: Sequence[tuple[str, str | bytes]] = (
        ("authorization", ""),
        ("authorization", "Bearer"),
        ("authorization", "Bearer " + "x" * 4000),
        ("authorization", f"Basic {token}"),
        ("authorization", f"bearer  {token} {token}"),
        ("authorization", "Bearer ~!@#$%^&*()"),
        ("authorization-bin", draw.randbytes(60)),
        ("grpc-timeout", "99999999H"),
        ("x-" + "y" * 200, "z" * 6000),
        right,
    )
    return tuple(draw.choices(wrong, k=draw.randrange(4)))


def raw_connection(draw: random.Random, token: str) -> bytes:
    """An HTTP/2 connection with one call, written by hand: its headers may hold any byte."""
    method = draw.choice((*METHODS, "Nothing", ""))
    authorization = draw.choice(
        (f"Bearer {token}".encode(), b"Bearer \xff\xfe", b"\0", b"Bearer \n")
    )
    headers = [
        (b":method", draw.choice((b"POST", b"POST", b"GET"))),
        (b":scheme", b"http"),
        (b":path", f"/{SERVICE}/{method}".encode()),
        (b":authority", draw.choice((b"localhost", b"\xff", b""))),
        (b"te", b"trailers"),
        (b"content-type", draw.choice((b"application/grpc", b"text/html"))),
        (draw.choice((b"authorization", b"authorization", b"Upper", b"a\0b")), authorization),
    ]
    block = b"".join(b"\0" + _hpack_text(name) + _hpack_text(value) for name, value in headers)
    body = request(draw, method)[:16_000]
    message = b"\0" + len(body).to_bytes(4) + body
    frames = _frame(4, 0, 0, b"") + _frame(1, 4, 1, block) + _frame(0, 1, 1, message)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    return preface + (mutated(draw, frames) if draw.randrange(2) else frames)


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    """https://www.rfc-editor.org/rfc/rfc9113#section-4.1"""
    return len(content).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + content


def _hpack_text(text: bytes) -> bytes:
    """https://www.rfc-editor.org/rfc/rfc7541#section-5.2, not compressed; below 127 bytes."""
    assert len(text) < 127
    return bytes((len(text),)) + text
