"""Mutated messages of pgoutput: each is decoded or breaks the protocol, in C as in Python.

Whatever else a message could raise would end the server instead of the session.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from laredo_fanout.decode import row_scan, stream_decoder, transaction_spool
from laredo_fanout.decode.row_decoder import row_decoder
from laredo_fanout.decode.row_scan import Route
from laredo_fanout.decode.stream_decoder import DrainEnd, StreamDecoder, StreamRelations
from laredo_fanout.decode.transaction_spool import TransactionSpools
from laredo_fanout.postgres.connections import ReplicationStreamBroken
from laredo_fanout.postgres.pgoutput import Relation
from laredo_model.column import TypeInfo
from tests.fuzz import budget
from tests.fuzz.hostile_frames import OIDS, getting, tuple_data
from tests.fuzz.mutation import mutated

_COLUMNS = (("id", 20), ("t", 25))
_TEXTS = (b"", b"a", b'tn"\\', "é\u2028".encode())
_XIDS = (700, 701, 0x7FFFFFFF, 0xFFFFFFFF)
_WORDS = (
    *(xid.to_bytes(4, "big") for xid in _XIDS),
    *(bytes((kind,)) for kind in b"BCROYMTIUDSEcA"),
)


class _Tables:
    """Every announced relation is one of ours; what became of its rows is kept."""

    def __init__(self) -> None:
        self.routes: list[Route] = []
        self.refused: list[str] = []

    def route(self, relation: Relation) -> Route:
        route = Route(relation.oid)
        names = [f"{number}" for number in range(len(relation.columns))]
        types = [TypeInfo(25, "text") for _ in names]
        route.decode_by(row_decoder(names, types, names[:1], route.changes))
        self.routes.append(route)
        return route

    def announced_again(self, relation: Relation) -> None:
        """Nothing was altered."""

    def announced_after(self, root: int, leaf: int) -> None:
        """No relation is a partition."""

    def truncated(self, oids: Sequence[int]) -> None:
        """Nothing has partitions."""

    def broken(self, route: Route, error: Exception) -> None:
        self.refused.append(type(error).__name__)


class _Wal:
    """Messages that PostgreSQL might send: transactions one after the other, each whole or in
    parts."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._at = 1000

    def messages(self) -> Iterator[bytes]:
        for number in range(self._draw.randint(1, 3)):
            within = self._in_parts if self._draw.randrange(2) else self._whole
            yield from within(700 + 10 * number)
            yield b"k" + pack(">QqB", self._at, 0, self._draw.randrange(2))

    def _whole(self, xid: int) -> Iterator[bytes]:
        yield self._message(b"B", pack(">QqI", self._at + 50, 0, xid))
        yield from (self._message(kind, content) for kind, content in self._changes())
        yield self._message(b"C", self._commit())

    def _in_parts(self, xid: int) -> Iterator[bytes]:
        for part in range(self._draw.randint(1, 3)):
            yield self._message(b"S", pack(">IB", xid, not part))
            of = xid + self._draw.randrange(3)
            for kind, content in self._changes():
                yield self._message(kind, pack(">I", of) + content)
            yield self._message(b"E", b"")
            if of != xid and not self._draw.randrange(3):
                yield self._message(b"A", pack(">II", xid, of))
        yield self._message(b"c", pack(">I", xid) + self._commit())

    def _commit(self) -> bytes:
        begin, self._at = self._at, self._at + 100
        return pack(">BQQq", 0, begin, self._at, self._draw.randrange(1 << 50))

    def _changes(self) -> Iterator[tuple[bytes, bytes]]:
        draw = self._draw
        for oid in OIDS[: draw.randint(1, 2)]:
            yield (
                b"R",
                oid
                + b"s\0t\0d"
                + pack(">H", len(_COLUMNS))
                + b"".join(
                    bytes((not number,)) + name.encode() + b"\0" + pack(">Ii", type_oid, -1)
                    for number, (name, type_oid) in enumerate(_COLUMNS)
                ),
            )
            for _ in range(draw.randrange(4)):
                row = tuple_data(draw, [b"%d" % draw.randrange(9), draw.choice(_TEXTS)])
                kind, form = draw.choice(((b"I", b"N"), (b"U", b"N"), (b"D", b"K")))
                yield kind, oid + form + row
        if not draw.randrange(3):
            yield b"T", pack(">IB", 1, 0) + OIDS[0]
        if not draw.randrange(3):
            text = draw.randbytes(draw.choice((3, 3000)))
            yield b"M", pack(">BQ", 1, self._at) + b"laredo\0" + pack(">I", len(text)) + text
        if not draw.randrange(4):
            yield draw.choice(((b"O", pack(">Q", 1) + b"o\0"), (b"Y", pack(">I", 1) + b"s\0n\0")))

    def _message(self, kind: bytes, content: bytes) -> bytes:
        return b"w" + pack(">QQq", self._at, self._at, 0) + kind + content


def _decoded(messages: list[bytes], path: Path) -> Any:
    """Decoded messages: changes of each route, their positions, and the refusals."""
    tables, relations = _Tables(), StreamRelations()
    decoder = StreamDecoder(tables, relations, lambda each: each.prefix == b"laredo", path, 900)
    get, taken, end = getting(messages), [], None
    try:
        while (drained := decoder.drain(get, 3)) is not DrainEnd.EMPTY:
            taken.append(drained.name)
            decoder.pending.take()
            if drained is DrainEnd.EVENT:
                decoder.take_events()
    except ReplicationStreamBroken as broken:
        end = str(broken)
    finally:
        decoder.close()
    rows = [(bytes(r.changes.actions), r.changes.keys, r.changes.lines) for r in tables.routes]
    return rows, taken, tables.refused, decoder.position, decoder.time_us, end


@pytest.mark.parametrize("pieces", [1 << 20, 200], ids=["small", "giant"])
def test_a_message_is_decoded_or_breaks_the_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    monkeypatch.setattr(stream_decoder, "_SPOOL_FROM_BYTES", pieces)
    monkeypatch.setattr(transaction_spool, "_PIECE_BYTES", pieces)
    for drawn in budget.inputs(0.5):
        with drawn as draw:
            messages = list(_Wal(draw).messages())
            assert _decoded(messages, tmp_path)[-1] is None
            for _ in range(8):
                at = draw.randrange(len(messages))
                changed = mutated(draw, messages[at], _WORDS)
                if changed:
                    given = [*messages[:at], changed, *messages[at + 1 :]]
                    results = []
                    for scan in (row_scan.scan_plainly, row_scan.scan):
                        monkeypatch.setattr(stream_decoder, "scan", scan)
                        results.append(_decoded(given, tmp_path))
                    assert results[0] == results[1], given


def _sent(kind: bytes, content: bytes) -> bytes:
    return b"w" + pack(">QQq", 2000, 2000, 0) + kind + content


@pytest.mark.parametrize(
    "message",
    [
        _sent(b"B", pack(">Qq", 1050, 0)),
        _sent(b"B", pack(">QqH", 1050, 0, 0)),
        *(_sent(kind, OIDS[0][:2]) for kind in (b"I", b"U", b"D")),
    ],
)
def test_a_message_that_is_cut_short(tmp_path: Path, message: bytes) -> None:
    assert "cut short" in str(_decoded([message], tmp_path)[-1])


@pytest.mark.parametrize(
    "within",
    [
        _sent(b"S", pack(">IIB", 700, 702, 1)),
        _sent(b"c", pack(">IIBQQq", 700, 700, 0, 1000, 1100, 0)),
    ],
    ids=["start", "commit"],
)
def test_another_part_within_a_part(tmp_path: Path, within: bytes) -> None:
    """The rest of the part must not be skipped."""
    messages = [
        _sent(b"S", pack(">IB", 700, 1)),
        within,
        _sent(b"E", b""),
        _sent(b"c", pack(">IBQQq", 700, 0, 1000, 1100, 0)),
    ]
    assert "within transaction 700" in str(_decoded(messages, tmp_path)[-1])


def test_no_subtransaction_reserves_more_than_its_messages(tmp_path: Path) -> None:
    spool = TransactionSpools(tmp_path / "streamed").part(700, first=True)
    tracemalloc.start()
    try:
        for xid in (701, 0x7FFFFFFF, 699, 705):
            spool.begin(xid)
            spool.add(b"%d" % xid)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    spool.roll_back(0x7FFFFFFF)
    spool.begin(705)
    spool.add(b"again")
    get = next(spool.pieces())
    assert [get(1)[1] for _ in range(3)] == [b"701", b"again", b""]
