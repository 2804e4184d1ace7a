"""Each C extension beside its Python twin: what one drawn input comes to in both.

A check draws an input and holds the two equal, in what they give and in what they refuse. The
same checks run with extensions that were built with sanitizers (sanitized.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from struct import pack
from typing import Any

from laredo_fanout.decode import frames, row_scan
from laredo_fanout.decode.frames import Get
from laredo_fanout.decode.row_decoder import row_decoder
from laredo_fanout.decode.row_scan import Route
from laredo_fanout.postgres.connections import ReplicationStreamBroken
from laredo_fanout.serving.struct_rows import StructRows, struct_of
from laredo_fanout.store import seal
from laredo_fanout.wire import protobuf
from laredo_model.errors import ModelError
from tests.fuzz import struct_twins
from tests.fuzz.hostile_frames import OIDS, broken, getting, row, xlog
from tests.support.row_tuples import HOSTILE, SAMPLES, TYPES

Outcome = tuple[str, Any]


def outcome(call: Callable[[], Any]) -> Outcome:
    """Result of a call, or the type of its exception."""
    try:
        return "gives", call()
    except Exception as refusal:  # noqa: BLE001 - which one is what is compared
        return "refuses", type(refusal).__name__


# ---------------------------------------------------------------- _repeated.c

_VALUE_SIZES = (0, 1, 2, 126, 127, 128, 300, 16_383, 16_384, 70_000)


def repeated(draw: random.Random) -> int:
    """A repeated field; one list in ten holds what isn't bytes."""
    count = draw.choice((0, 1, 2, 5, 40))
    values: list[Any] = [draw.randbytes(_size(draw)) for _ in range(count)]
    if values and not draw.randrange(10):
        values[draw.randrange(count)] = draw.choice(("text", 7, None, 1.5, []))
    field = protobuf.RepeatedBytes(draw.choice((1, 15, 16, 2047, 2048, (1 << 29) - 1)))
    compiled = outcome(lambda: field.joined(values))
    assert compiled == outcome(lambda: b"".join(field.pieces(values)))
    trimmed = draw.choice((1, 8, 128))
    cut = outcome(lambda: field.joined(values, trimmed))
    if cut[0] == "gives":
        assert cut == outcome(lambda: b"".join(field.pieces([each[:-trimmed] for each in values])))
    return max(1, count)


def _size(draw: random.Random) -> int:
    return draw.choice(_VALUE_SIZES) if not draw.randrange(8) else draw.randrange(40)


# ---------------------------------------------------------------- _seals.c


def seals(draw: random.Random) -> int:
    """Sealed rows, some of them damaged; one list in ten holds what isn't bytes."""
    count = draw.choice((0, 1, 2, 5, 40))
    stored: list[Any] = [b"\0\0\0\1" + draw.randbytes(_size(draw)) for _ in range(count)]
    lines: list[Any] = [draw.randbytes(_size(draw)) for _ in range(count)]
    values, total = seal.sealed(stored, lines)
    assert (values, total) == seal.plain_sealed(stored, lines)
    assert seal.opened(list(zip(stored, values, strict=True))) == (
        [key[4:] for key in stored],
        lines,
        total,
        -1,
    )
    assert seal.joined(b"key", tuple(lines)) == seal.plain_joined(b"key", tuple(lines))
    found: list[Any] = [draw.choice((value, value, None, b"")) for value in values]
    if found and draw.randrange(2):
        index = draw.randrange(count)
        found[index] = _damaged(draw, values[index])
    assert seal.checked(stored, found) == seal.plain_checked(stored, found)
    rows = [(key, value or b"") for key, value in zip(stored, found, strict=True)]
    if rows and not draw.randrange(3):
        rows[-1] = (draw.randbytes(4) + rows[-1][0][4:], values[-1])
    assert seal.opened(rows) == seal.plain_opened(rows)
    for key, value in rows:
        assert seal.fits(key[4:], value) == seal.plain_fits(key[4:], value)
        assert seal.fits(key[4:], memoryview(value)) == seal.plain_fits(key[4:], memoryview(value))
    if stored and not draw.randrange(10):
        stored[draw.randrange(count)] = draw.choice(("text", 7, None, 1.5, []))
        for compiled, plain in (
            (seal.sealed, seal.plain_sealed),
            (seal.checked, seal.plain_checked),
        ):
            refused = outcome(lambda call=compiled: call(stored, values))  # type: ignore[misc]
            assert refused[0] == outcome(lambda call=plain: call(stored, values))[0]  # type: ignore[misc]
    return max(1, count)


def _damaged(draw: random.Random, value: bytes) -> bytes:
    if draw.randrange(3) == 0:
        return value[: draw.randrange(len(value))]
    changed = bytearray(value)
    changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


# ---------------------------------------------------------------- _struct_rows.c

_TEXTS = ("", "a", "\u00e9", "\U0001f600", "x" * 127, "x" * 128, "y" * 70_000, "\ud800", "\0")
_NUMBERS = (0, -1, 1 << 53, (1 << 53) + 1, -(1 << 63), (1 << 63) - 1, 1 << 64, 1 << 300)
_FLOATS = (0.5, -0.0, 5e-324, 1.7976931348623157e308, float("inf"), float("nan"))


def struct_rows(draw: random.Random) -> int:
    """A row of whatever JSON has, deeper than is encoded too; one in ten is no row."""
    row = {draw.choice(_TEXTS) + str(n): _json(draw, 0) for n in range(draw.randrange(6))}
    if not draw.randrange(4):
        deep: Any = 1
        for _ in range(draw.choice((26, 27, 28, 29, 90))):
            deep = [deep] if draw.randrange(2) else {"deep": deep}
        row["deep"] = deep
    if not draw.randrange(8):
        row["many"] = [{"": []} for _ in range(draw.choice((31, 32, 33, 300)))]
    assert struct_of is not None
    encoded = struct_of(row)
    if encoded is not None:
        assert encoded == StructRows().encode_plainly(row)
    nonsense: Any = draw.choice(("text", 7, None, [], {1: 2}, {"a": b"bytes"}, {"a": {1: 2}}))
    assert outcome(lambda: struct_of(nonsense)) in (("gives", None), ("refuses", "TypeError"))
    return len(row) + 1


def _json(draw: random.Random, depth: int) -> Any:
    if depth < 5 and not draw.randrange(3):
        many = draw.choice((0, 1, 2, 9)) if depth < 3 else draw.randrange(3)
        inside = [_json(draw, depth + 1) for _ in range(many)]
        return inside if draw.randrange(2) else {str(n): each for n, each in enumerate(inside)}
    return draw.choice(draw.choice((_TEXTS, _NUMBERS, _FLOATS, (None, True, False))))


# ---------------------------------------------------------------- _frames.c

_KINDS = (b"I", b"U", b"D", b"B", b"C", b"R", b"T", b"S")


def gather(draw: random.Random) -> int:
    """Messages of several relations, gathered to the end, and what no ``get`` should give."""
    messages = [broken(draw, _any_message(draw)) for _ in range(draw.randrange(12))]
    relation = draw.choice((*OIDS, b"", b"\0\0\0", bytes(5)))
    limit, end = draw.randrange(14), draw.choice((0, -1, -2))
    nonsense = draw.choice((5, None, (1, "text"), ("1", b"w"), (None, b"w"), (1, None)))
    tail = [] if draw.randrange(10) else [nonsense]
    views = draw.choice((bytes, bytearray, memoryview))
    results = []
    for function in (frames.gather_plainly, frames.gather):
        get = _giving(messages, tail, end, views)
        into = bytearray(b"before")
        turns: list[Outcome] = []
        while not turns or (turns[-1][0] == "gives" and turns[-1][1][1] is not None):
            turns.append(outcome(lambda: _gathered(function(get, limit, relation, into))))  # noqa: B023
        results.append((turns, bytes(into)))
    assert results[0] == results[1], results
    return len(messages) + 1


def _gathered(found: tuple[int, bytes | None, int]) -> tuple[int, bytes | None, int]:
    """Behind a message or the limit any size above 0 may be told."""
    size, message, taken = found
    return min(size, 1), message, taken


def _any_message(draw: random.Random) -> bytes:
    if not draw.randrange(8):
        return b"k" + pack(">QQB", draw.getrandbits(64), 0, 0)
    return xlog(draw, draw.choice(_KINDS), draw.choice(OIDS) + draw.randbytes(draw.randrange(60)))


def _giving(messages: list[bytes], tail: list[Any], end: int, views: Any) -> Get:
    left = iter([*((len(each), views(each)) for each in messages), *tail])
    return lambda _: next(left, (end, b""))


def spool_frames(draw: random.Random) -> int:
    """Frames, right and wrong, in whatever blocks they come."""
    messages = [draw.randbytes(_size(draw)) for _ in range(draw.randrange(8))]
    whole = b"".join(map(frames.framed, messages))
    spooled = broken(draw, whole or b"\0")
    # An empty message counts as none, and is never sent.
    is_whole = spooled == whole and all(messages)
    plain, quick = frames.PlainFrames(), frames.new_frames()
    found: list[bytes] = []

    def get() -> int:
        size, message = plain.get(1)
        assert (size, message) == quick.get(1)
        found.extend([bytes(message)] if size > 0 else [])
        return size

    while spooled:
        cut = draw.randint(1, len(spooled))
        block, spooled = spooled[:cut], spooled[cut:]
        plain.add(block)
        quick.add(block)
        for _ in range(draw.randrange(12)):
            get()
        assert plain.left == quick.left
    while is_whole and get():
        pass
    assert found == messages or not is_whole
    nonsense: Any = draw.choice(("text", 7, None, []))
    assert outcome(lambda: plain.add(nonsense)) == outcome(lambda: quick.add(nonsense))
    return len(messages) + 1


# ---------------------------------------------------------------- _row_scan.c

_SHAPES = 40
_REFUSED = (ReplicationStreamBroken, ModelError, UnicodeDecodeError)
"""Errors for which StreamDecoder gives up the table; any other would end the server."""


class _Relation:
    """One relation's columns, with a decoder for each side."""

    def __init__(self, number: int) -> None:
        draw = random.Random(number)
        self.types = draw.choices(list(TYPES), k=draw.choice((1, 2, 3, 6)))
        self.types[0] = draw.choice(("int8", "text", "uuid", "numeric"))
        names = [f"c{column}" for column in range(len(self.types))]
        key = draw.sample(names, draw.randint(0, len(names))) if number % 2 else names[:1]
        kinds = [TYPES[name] for name in self.types]
        self.routes = Route(1), Route(1)
        for route in self.routes:
            route.decode_by(row_decoder(names, kinds, tuple(key), route.changes))

    def values(self, draw: random.Random) -> list[bytes | None]:
        return [self._value(draw, name) for name in self.types]

    @staticmethod
    def _value(draw: random.Random, name: str) -> bytes | None:
        if not draw.randrange(9):
            return None
        return draw.choice(SAMPLES[name]).encode() if draw.randrange(9) else draw.choice(HOSTILE)


@cache
def _relation(number: int) -> _Relation:
    return _Relation(number)


def rows(draw: random.Random) -> int:
    """Rows, right and wrong, become the same keys and lines, or are refused alike."""
    relation, other = _relation(draw.randrange(_SHAPES)), _relation(_SHAPES)
    messages = []
    for _ in range(draw.randrange(1, 12)):
        of, oid = draw.choice(((relation, OIDS[0]), (relation, OIDS[0]), (other, OIDS[1])))
        messages.append(broken(draw, row(draw, oid, of.values(draw))))
    ways = []
    for side in (0, 1):
        ways.append({OIDS[0]: relation.routes[side], OIDS[1]: other.routes[side]})
    results = [
        _taken(scan, messages, way)
        for scan, way in zip((row_scan.scan_plainly, row_scan.scan), ways, strict=True)
    ]
    for python, compiled in zip(*results, strict=True):
        assert python == compiled, f"{python}\n{compiled}\n{messages}"
    return len(messages)


def _taken(scan: row_scan.Scan, messages: list[bytes], routes: dict[bytes, Route]) -> Any:
    """As StreamDecoder takes them: what is handed back goes to its route."""
    get, left, bytes_ = getting(messages), len(messages), 0
    refused: list[tuple[int, str]] = []
    while left:
        _, message, taken, received, _ = scan(get, left, routes, {})
        left -= taken
        bytes_ += received
        if message is not None and message[:1] == b"w" and message[25:26] in (b"I", b"U"):
            route = routes.get(message[26:30])
            if route is not None:
                try:
                    route.put(message, 2 if message[25:26] == b"U" else 1)
                except _REFUSED as refusal:
                    refused.append((left, type(refusal).__name__))
    made = []
    for route in routes.values():
        changes = route.changes
        made.append((bytes(changes.actions), changes.keys[:], changes.lines[:]))
        _clear(route)
    return made, refused, bytes_


def _clear(route: Route) -> None:
    for part in (route.changes.actions, route.changes.keys, route.changes.lines):
        part.clear()


CHECKS: dict[str, Callable[[random.Random], int]] = {
    "repeated": repeated,
    "seals": seals,
    "structs": struct_rows,
    "gather": gather,
    "frames": spool_frames,
    "rows": rows,
    "scanned structs": struct_twins.structs,
    "lines": struct_twins.line_columns,
    "first columns of lines": struct_twins.first_columns,
    "struct messages": struct_twins.struct_messages,
    "new rows": struct_twins.new_rows,
}
"""Each gives how many messages or values its input held."""
