"""Where the stream's messages are decoded: here, or in a backlog by other processes.

A thread takes messages from the connection and gives them away in blocks, of
whatever messages come; what they decode to is taken in the blocks' order. The
blocks are kept until then: what a process leaves undecoded, or decoded by
layouts that have changed meanwhile, or took with it when it died, is decoded
here. So no process needs to know of anything but rows, BEGIN and COMMIT.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from laredo_fanout.source import decode_wire as wire
from laredo_fanout.source.decode_pool import DecodePool
from laredo_fanout.source.stream_decoder import Drained

if TYPE_CHECKING:
    from laredo_fanout.source.decode_process import DecodeProcess
    from laredo_fanout.source.decode_wire import Decoded, Layout
    from laredo_fanout.source.detour import Feed
    from laredo_fanout.source.replication import ReplicationStream
    from laredo_fanout.source.status import Counters
    from laredo_fanout.source.stream_decoder import StreamDecoder

_WINDOW_S = 0.25
_ENTER_BYTES, _LEAVE_BYTES = 256 << 10, 64 << 10
"""A window with so much received begins, with less ends, decoding by other processes."""
_BLOCK_AGE_S = 0.01
_NAP_S, _LONG_NAP_S = 0.001, 0.003
_LITTLE_BYTES = 16 << 10
"""As little as that isn't worth a nap's end: each costs the thread as much as some messages."""
_ROOM_WAIT_S = 0.05
_OVERHEAD = wire.room_for(0, 1)
"""Of each message in a block."""


class Decoding:
    """In the ingest alone: ``feed``'s messages go through ``decoder``."""

    def __init__(self, feed: Feed, decoder: StreamDecoder) -> None:
        self._feed = feed
        self._decoder = decoder
        self._more = False

    @property
    def descriptors(self) -> Sequence[int]:
        """What to wait for."""
        return [self._feed.fileno()]

    @property
    def blocks(self) -> int:
        """That were given away and not taken back yet."""
        return 0

    @property
    def workers(self) -> int:
        """How many processes are there to decode."""
        return 0

    def gulp(self) -> int:
        """Bring what has come, when what came before is used up; how many bytes.

        :raises SourceError: if the stream was cut.
        """
        return 0 if self._more else self._feed.gulp()

    def gulp_ahead(self) -> int:
        """The same while rows are written: the server's sender would sleep with a full socket."""
        return self._feed.gulp_ahead()

    def drain(self, limit: int) -> Drained:
        """Decode what has come, at most about ``limit`` messages.

        :raises StreamBroken: if the stream isn't the protocol's.
        """
        result = self._decoder.drain(self._feed.get, limit)
        self._more = result is Drained.MORE
        return result

    def close(self) -> None:
        """Let go of everything but the feed."""


class DecodePipeline(Decoding):
    """With ``workers`` processes in a backlog. ``wake`` makes the ingest's loop come by soon;
    a process that gives no answer for ``patience`` seconds is ended."""

    def __init__(
        self,
        stream: ReplicationStream,
        decoder: StreamDecoder,
        workers: int,
        *,
        counters: Counters,
        wake: Callable[[], None],
        patience: float,
    ) -> None:
        super().__init__(stream, decoder)
        self._stream = stream
        self._pool = DecodePool(workers, wire.BLOCK_BYTES, counters)
        self._counters = counters
        self._wake = wake
        self._patience = patience
        self._reader: _Reader | None = None
        self._rest: wire.Messages | None = None
        self._heard = 0
        self._window = _Window()
        self._setup = 0
        self._layouts: Mapping[bytes, Layout | None] = {}
        self._waits_since = time.monotonic()
        self._pool.tend()

    @property
    def descriptors(self) -> Sequence[int]:
        """What to wait for."""
        if self._reader is None:
            return super().descriptors
        return [process.fileno() for process in self._pool.processes if not process.lost]

    @property
    def blocks(self) -> int:
        """That were given away and not taken back yet."""
        return 0 if self._reader is None else len(self._reader.blocks)

    @property
    def workers(self) -> int:
        """How many processes are there to decode."""
        return sum(process.ready and not process.lost for process in self._pool.processes)

    def gulp(self) -> int:
        """Bring what has come, or hear how much the thread has brought since the last call."""
        if self._reader is None:
            taken = super().gulp()
            self._window.add(taken)
            return taken
        heard, self._heard = self._heard, self._reader.received
        return self._heard - heard

    def gulp_ahead(self) -> int:
        """The same while rows are written; the thread does so by itself."""
        return super().gulp_ahead() if self._reader is None else 0

    def drain(self, limit: int) -> Drained:
        """Take what was decoded, or decode it, at most about ``limit`` messages."""
        self._pool.tend()
        if self._reader is None:
            if self._is_worth_it():
                self._begin()
            else:
                return super().drain(limit)
        taken = 0
        while taken < limit:
            if self._rest is not None:
                result = self._decoder.drain(self._rest.get, limit)
                if result is not Drained.EMPTY:
                    return result
                self._rest = None
            elif not (count := self._take_block()):
                return Drained.MORE if taken else self._without_blocks()
            else:
                taken += count
        return Drained.MORE

    def close(self) -> None:
        """End the thread and the processes."""
        if self._reader is not None:
            self._reader.stop()
        self._pool.close()

    def _is_worth_it(self) -> bool:
        return self._window.fullest >= _ENTER_BYTES and self._pool.ready and self._decoder.is_plain

    def _begin(self) -> None:
        self._set_up()
        self._heard = 0
        self._waits_since = time.monotonic()
        self._reader = _Reader(self._stream, self._pool, self._wake)
        self._reader.start()

    def _set_up(self) -> None:
        """Tell the processes of layouts that aren't what they were."""
        layouts = self._decoder.layouts()
        if layouts != self._layouts or not self._setup:
            self._layouts = layouts
            self._setup += 1
        for process in self._pool.processes:
            if process.ready and process.setup != self._setup:
                process.set_up(self._setup, self._layouts)

    def _take_block(self) -> int:
        """Take the next block, or what it decodes to: of how many messages; 0: not there yet."""
        assert self._reader is not None
        if not self._reader.blocks:
            return 0
        block = self._reader.blocks[0]
        process = block.process
        if process is None:
            self._rest = wire.Messages(block.content, block.messages)
        else:
            if not process.is_done(block.slot) and not process.lost:
                process.listen()
            if process.is_done(block.slot):
                self._take_decoded(block, process.result(block.slot))
            elif process.lost:
                self._take_decoded(block, None)
            else:
                if time.monotonic() - self._waits_since > self._patience:
                    process.give_up()
                return 0
            process.release(block.slot)
        self._reader.blocks.popleft()
        self._reader.has_room.set()
        self._waits_since = time.monotonic()
        return block.messages

    def _take_decoded(self, block: _Block, decoded: Decoded | None) -> None:
        self._set_up()
        done = 0
        if decoded is not None and decoded.setup == self._setup and self._decoder.is_plain:
            self._decoder.take(decoded)
            done = decoded.messages
        if done < block.messages:
            assert block.process is not None
            content = block.process.block(block.slot, block.size)
            self._rest = wire.Messages(content, block.messages, done)

    def _without_blocks(self) -> Drained:
        """Nothing has come back; perhaps nothing will."""
        reader = self._reader
        assert reader is not None
        if reader.is_alive() or reader.blocks:
            return Drained.EMPTY
        self._reader = None
        self._window = _Window()
        if reader.error is not None:
            raise reader.error
        return Drained.ENDED if reader.ended else Drained.EMPTY


class _Window:
    """How much was received lately."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._now = self._before = 0

    def add(self, size: int) -> None:
        """So many bytes more."""
        elapsed = time.monotonic() - self._began
        if elapsed > _WINDOW_S:
            self._before = self._now if elapsed < 2 * _WINDOW_S else 0
            self._began += elapsed
            self._now = 0
        self._now += size

    @property
    def fullest(self) -> int:
        """Bytes within a window's time, this one's or the last one's."""
        return max(self._now, self._before)

    @property
    def is_whole(self) -> bool:
        """Whether it has seen all of a window's time."""
        return time.monotonic() - self._began > _WINDOW_S


class _Block(NamedTuple):
    """Some messages, given to ``process``, in this slot of its; without one, the ``content``."""

    process: DecodeProcess | None
    slot: int
    content: bytes
    size: int
    messages: int


class _Reader(threading.Thread):
    """Takes messages from the connection and gives them to the processes, until little comes.

    The walsender is never kept waiting by what the ingest's thread does meanwhile.
    ``received`` are bytes; ``ended``: the server ended the stream; ``error``: it was cut.
    """

    def __init__(
        self, stream: ReplicationStream, pool: DecodePool, wake: Callable[[], None]
    ) -> None:
        super().__init__(name="stream reader", daemon=True)
        self._stream = stream
        self._pool = pool
        self._wake = wake
        self._stopping = False
        self._messages: list[memoryview] = []
        self._sizes: list[int] = []
        self._room = wire.BLOCK_BYTES
        self._begun_at = 0.0
        self._must_end = False
        self.blocks: deque[_Block] = deque()
        self.has_room = threading.Event()
        self.received = 0
        self.ended = False
        self.error: Exception | None = None

    def run(self) -> None:
        """Until little comes, the stream ends or is cut, nobody decodes, or :meth:`stop`."""
        try:
            self._read()
        except Exception as error:  # noqa: BLE001 - the ingest's thread raises it
            self.error = error
        self._wake()

    def stop(self) -> None:
        """Have it end, and wait for that."""
        self._stopping = True
        self.has_room.set()
        self.join()

    def _read(self) -> None:
        window = _Window()
        before = 0
        is_full = False
        while not (self._stopping or self._must_end or self.ended):
            with self._stream.lock:
                # Where the block is full there is more in libpq's buffer, which would grow.
                taken = 0 if is_full else self._stream.gulp()
                self.received += taken
                is_full = self._gather()
            if is_full or (self._sizes and time.monotonic() - self._begun_at > _BLOCK_AGE_S):
                self._give()
            if window.is_whole:
                if self.received - before < _LEAVE_BYTES:
                    break
                window, before = _Window(), self.received
            if not is_full:
                time.sleep(_NAP_S if taken > _LITTLE_BYTES else _LONG_NAP_S)
        while self._sizes:
            self._give()

    def _gather(self) -> bool:
        """Take messages out of libpq's buffer; whether the block is full."""
        get, messages, sizes = self._stream.get, self._messages, self._sizes
        if not sizes:
            self._begun_at = time.monotonic()
        room = self._room
        while room > 0:
            size, message = get(1)
            if size <= 0:
                self.ended = size < 0
                break
            messages.append(message)
            sizes.append(size)
            room -= size + _OVERHEAD
        self._room = room
        return room <= 0

    def _give(self) -> None:
        """Give away the gathered messages, but for the last one if it is too much for the block."""
        while self._sizes:
            count = len(self._sizes)
            if self._room < 0 and count > 1:
                count -= 1
            content = wire.block_bytes(self._messages[:count], self._sizes[:count])
            self._give_block(content, count)
            del self._messages[:count], self._sizes[:count]
            if not self._sizes:
                self._room = wire.BLOCK_BYTES
                return
            self._room = wire.BLOCK_BYTES - self._sizes[0] - _OVERHEAD
            if self._room > 0:
                return

    def _give_block(self, content: bytes, count: int) -> None:
        size = len(content)
        while not self._stopping:
            process = self._pool.with_room() if size <= wire.BLOCK_BYTES else None
            slot = None if process is None else process.put(content, count)
            if slot is not None:
                self.blocks.append(_Block(process, slot, b"", size, count))
                return
            # What the ingest must decode waits here, so that it is never much.
            self._must_end = not self._pool.ready
            if not self.blocks and (self._must_end or size > wire.BLOCK_BYTES):
                self.blocks.append(_Block(None, 0, content, size, count))
                self._wake()
                return
            self.has_room.wait(_ROOM_WAIT_S)
            self.has_room.clear()
