"""Decodes blocks of the stream: ``python -m laredo_fanout.source.decode_worker``.

It knows rows, BEGIN and COMMIT. With anything else, and with a row that it
can't decode, its work on a block ends: what is left of it is the ingest's.
"""

from __future__ import annotations

import mmap
import socket
import sys

from laredo_fanout.errors import StreamBroken
from laredo_fanout.source import decode_wire as wire
from laredo_fanout.source import message as message_
from laredo_fanout.source import watermark
from laredo_fanout.source.decode_wire import Decoded, Part
from laredo_fanout.source.route import IGNORED, Route
from laredo_fanout.source.row_decoder import PADDING, compile_decoder
from laredo_fanout.source.row_scan import scan
from laredo_model.change import Action

_PREFIX = watermark.PREFIX.encode()
_KIND = message_.ENVELOPE
_OID = slice(_KIND + 1, _KIND + 5)
_XID = slice(_KIND + 17, _KIND + 21)


class _NotOurs(StreamBroken):
    """The ingest must decode this message."""


class BlockDecoder:
    """Decodes blocks, each by itself: what is open at its end isn't remembered."""

    def __init__(self) -> None:
        self._setup = 0
        self._routes: dict[bytes, Route] = {}
        self._touched: dict[Route, None] = {}
        self._oids: dict[Route, bytes] = {}

    def set_up(self, setup: wire.Setup) -> None:
        """Take rows apart by these layouts from here on."""
        self._setup = setup.number
        for oid in (*setup.changed, *setup.ignored):
            route = self._routes.pop(oid, None)
            if route is not None:
                self._oids.pop(route, None)
        for oid, layout in setup.changed.items():
            self._routes[oid] = route = Route()
            self._oids[route] = oid
            if layout is None:
                route.put, route.delete = _not_ours, _not_ours_either
            else:
                route.decode_by(compile_decoder(*layout, route.changes))

    def decode(self, block: bytes, count: int) -> Decoded:
        """What the block's messages decode to, up to the first that is the ingest's."""
        done = Decoded(self._setup)
        messages = wire.Messages(block, count)
        while done.messages < count:
            _, message, taken, received, wal_end = scan(
                messages.get, count - done.messages, self._routes, self._touched
            )
            done.wal_end = max(done.wal_end, wal_end)
            done.messages += taken
            done.received += received
            done.open_bytes += received
            if message is None:
                break
            try:
                self._decode(message, done)
            except Exception:  # noqa: BLE001 - the ingest meets it again, and says what it is
                done.messages -= 1
                done.received -= len(message) - len(PADDING)
                done.open_bytes -= len(message) - len(PADDING)
                break
        self._hand_over(done)
        return done

    def _decode(self, message: bytes, done: Decoded) -> None:
        """What isn't a plain row."""
        kind = message[_KIND] if message[0] == message_.XLOG_DATA else message_.KEEPALIVE
        if kind in (message_.UPDATE, message_.INSERT, message_.DELETE):
            self._row(kind, message)
        elif kind == message_.COMMIT:
            done.wal_end = max(done.wal_end, message_.wal_end(message))
            self._commit(message_.commit(message), done)
        elif kind == message_.BEGIN:
            done.xid, done.in_transaction = message[_XID], True
            done.open_bytes = 0
        else:
            _note(message, done)

    def _row(self, kind: int, message: bytes) -> None:
        route = self._routes.get(message[_OID], IGNORED)
        if route is not IGNORED:
            self._touched[route] = None
        try:
            if kind == message_.DELETE:
                route.delete(message)
            else:
                route.put(message, Action.UPDATE if kind == message_.UPDATE else Action.INSERT)
        except Exception:
            route.trim()
            raise

    def _commit(self, commit: message_.Commit, done: Decoded) -> None:
        for route in self._touched:
            route.count(commit.position, commit.time_us)
        if len(done.commits) > 2:
            del done.commits[1]
        done.commits.append((commit.position, commit.time_us))
        done.in_transaction = False

    def _hand_over(self, done: Decoded) -> None:
        for route in self._touched:
            changes = route.changes
            if not changes.actions:
                continue
            done.parts[self._oids[route]] = Part(
                bytes(changes.actions),
                changes.keys[:],
                changes.lines[:],
                changes.counts[:],
                changes.positions[:],
                changes.times_us[:],
            )
            route.counted = len(changes.keys)
            route.clear()
        self._touched.clear()


def _not_ours(message: bytes, action: int) -> None:
    raise _NotOurs


def _not_ours_either(message: bytes) -> None:
    raise _NotOurs


def _note(message: bytes, done: Decoded) -> None:
    """Take what is no row and ends no transaction, if nothing comes of it but what it says."""
    if message[0] == message_.KEEPALIVE:
        keepalive = message_.keepalive(message)
        done.wal_end = max(done.wal_end, keepalive.wal_end)
        done.reply_wanted = done.reply_wanted or keepalive.wants_reply
        return
    kind = message[_KIND]
    if kind == message_.MESSAGE and message_.emitted(message).prefix != _PREFIX:
        return
    if kind not in (message_.ORIGIN, message_.TYPE):
        raise _NotOurs


def serve(connection: socket.socket, memory: mmap.mmap, slots: int) -> None:
    """Decode what is ordered until nobody orders anything any more."""
    room = len(memory) // slots // (1 + wire.RESULT_FACTOR)
    results = slots * room
    decoder = BlockDecoder()
    connection.sendall(wire.ANSWER.pack(wire.NOBODY, 0))
    while (order := wire.receive(connection)) is not None:
        if isinstance(order, wire.Setup):
            decoder.set_up(order)
            continue
        start = order.slot * room
        result = decoder.decode(memory[start : start + order.size], order.messages).to_bytes()
        size = len(result)
        if size > wire.RESULT_FACTOR * room:
            size = 0
        else:
            start = results + order.slot * wire.RESULT_FACTOR * room
            memory[start : start + size] = result
        connection.sendall(wire.ANSWER.pack(order.slot, size))


def main(arguments: list[str]) -> None:
    """``arguments``: the descriptors of the memory and the socket, and how many slots there are."""
    shared, ours, slots = map(int, arguments)
    connection = socket.socket(fileno=ours)
    with mmap.mmap(shared, 0) as memory, connection:
        try:
            serve(connection, memory, slots)
        except (BrokenPipeError, ConnectionResetError):
            return  # the ingest is gone


if __name__ == "__main__":
    main(sys.argv[1:])
