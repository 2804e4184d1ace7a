"""A process that decodes, seen from the ingest: its memory, what it was given, what it has done."""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Mapping
from struct import Struct

import structlog

from laredo_fanout.source import decode_wire as wire
from laredo_fanout.source.decode_wire import Block, Decoded, Layout, Setup

_log = structlog.get_logger()

_SEND_PATIENCE = Struct("ll").pack(5, 0)
"""A timeval: seconds, microseconds."""
_END_PATIENCE_S = 5.0


class DecodeProcess:
    """One of them. ``slots`` is how many blocks it may have at once, of ``room`` bytes.

    The thread that reads the stream gives blocks (:meth:`put`), the ingest's takes what they
    decode to. ``lost``: it is gone, or as good as that; what it was given is still to be had.
    """

    def __init__(self, slots: int, room: int) -> None:
        self._slots = slots
        self._room = room
        size = slots * room * (1 + wire.RESULT_FACTOR)
        shared = os.memfd_create("laredo-decode")
        ours, theirs = socket.socketpair()
        try:
            os.ftruncate(shared, size)  # pages that nothing is written to take no memory
            self._memory = mmap.mmap(shared, size)
            self._process = subprocess.Popen(
                wire.module_command(
                    "laredo_fanout.source.decode_worker", shared, theirs.fileno(), slots
                ),
                stdin=subprocess.DEVNULL,
                pass_fds=(shared, theirs.fileno()),
                # A terminal's Ctrl-C is for the main process, whose end closes the socket.
                process_group=0,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(shared)
        # Python's own timeout would have reading wait, too.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_PATIENCE)
        self._connection = ours
        self._sending = threading.Lock()
        self._giving = threading.Lock()
        self._free = deque(range(slots))
        self._results: dict[int, int] = {}
        self._unread = b""
        self._layouts: Mapping[bytes, Layout | None] = {}
        self.setup = 0
        """By which layouts it decodes what it is given now; 0: none yet."""
        self.ready = False
        """It has started, and been heard of."""
        self.lost = False
        self.decoded = 0
        """Blocks, so far."""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def fileno(self) -> int:
        """Readable when it has something to tell."""
        return self._connection.fileno()

    @property
    def has_room(self) -> bool:
        """Whether it may be given another block."""
        return self.ready and not self.lost and bool(self._free)

    @property
    def idle(self) -> bool:
        """Whether nothing that it was given is kept any more."""
        with self._giving:
            return len(self._free) == self._slots

    def set_up(self, number: int, layouts: Mapping[bytes, Layout | None]) -> None:
        """Have it decode by these layouts what it is given from here on."""
        known, self._layouts = self._layouts, dict(layouts)
        changed = {
            oid: layout
            for oid, layout in layouts.items()
            if oid not in known or known[oid] != layout
        }
        ignored = tuple(oid for oid in known if oid not in layouts)
        if self._send(Setup(number, changed, ignored)):
            self.setup = number

    def put(self, block: bytes, count: int) -> int | None:
        """Have it decode a block; the slot that keeps it until it is released. None: it is gone."""
        with self._giving:
            if self.lost:
                return None
            slot = self._free.popleft()
        start = slot * self._room
        self._memory[start : start + len(block)] = block
        self._send(Block(slot, len(block), count))
        return slot

    def block(self, slot: int, size: int) -> bytes:
        """The block in this slot."""
        start = slot * self._room
        return self._memory[start : start + size]

    def listen(self) -> None:
        """Take what it has told."""
        while not self.lost:
            try:
                told = self._connection.recv(4096, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                told = b""
            if not told:
                self.lost = True
                return
            self._unread += told
            while len(self._unread) >= wire.ANSWER.size:
                slot, size = wire.ANSWER.unpack_from(self._unread)
                self._unread = self._unread[wire.ANSWER.size :]
                self.ready = True
                if slot != wire.NOBODY:
                    self._results[slot] = size
                    self.decoded += 1

    def is_done(self, slot: int) -> bool:
        """Whether the block in this slot was decoded, as far as it could be."""
        return slot in self._results

    def result(self, slot: int) -> Decoded | None:
        """What a block that is done decodes to; None: it is the ingest's to decode."""
        size = self._results[slot]
        if not size:
            return None
        start = (self._slots + slot * wire.RESULT_FACTOR) * self._room
        with memoryview(self._memory) as memory, memory[start : start + size] as stored:
            return wire.decoded_from_bytes(stored)

    def release(self, slot: int) -> None:
        """The slot's block isn't needed any more."""
        self._results.pop(slot, None)
        self._free.append(slot)

    def give_up(self) -> None:
        """It does nothing: end it. What it was given is still to be had."""
        self.lost = True
        self._process.kill()

    def close(self) -> int:
        """End it and let everything go; its exit code."""
        self.lost = True
        self._connection.close()
        try:
            code = self._process.wait(_END_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._memory.close()
        return code

    def _send(self, order: Setup | Block) -> bool:
        """Send an order; whether it was taken."""
        with self._sending:
            try:
                wire.send(self._connection, order)
            except OSError as failed:  # a timeout is one, too
                _log.warning("a decoding process takes nothing", pid=self.pid, error=str(failed))
                self.lost = True
                return False
        return True
