"""FanoutClient: the client for programs with threads."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from laredo_archive.errors import NEEDS_PYARROW
from laredo_fanout.client.errors import ClientStopped
from laredo_fanout.client.events import Filter
from laredo_fanout.client.table.follower import Follower
from laredo_fanout.client.table.index import TableIndex
from laredo_fanout.client.table.listening import Listener, to_rows
from laredo_fanout.client.table.replica import Difference
from laredo_fanout.client.table.rows import Row, RowIterator
from laredo_fanout.client.table_client import TableClient

if TYPE_CHECKING:
    import pyarrow as pa

# The one event loop that all thread-safe clients of a process share.
#
# grpc.aio passes the completions of all loops through one socket of the process: loops wake each
# other, and a closed loop makes the others log errors. So there is one loop, on a daemon thread,
# and it is never closed.

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_owner = 0


def loop() -> asyncio.AbstractEventLoop:
    """The loop, running; a new one after a fork."""
    global _loop, _owner
    with _lock:
        if _loop is None or _owner != os.getpid():
            _loop, _owner = asyncio.new_event_loop(), os.getpid()
            threading.Thread(
                target=_loop.run_forever, name="laredo-fanout-client", daemon=True
            ).start()
        return _loop


def call(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` on the loop, and wait for its result."""
    return asyncio.run_coroutine_threadsafe(work, loop()).result()


_thread = threading.local()
"""In a thread that calls listeners: ``client``, theirs."""

_AT_ONCE = 1 << 62
"""Changes of a transaction: nobody else's loop waits for them."""


class FanoutClient(TableClient):
    """A table of a laredo-fanout server in this process's memory, kept up to date with it.

    ``server``: host:port, or a list of servers with the same data, such as a primary and its
    relays: when one doesn't serve, another one does. ``table``: schema.table.
    ``client_id``: the name in the server's lists (default: host and process).
    ``local_snapshot_path``: a file (or a directory that exists) for the rows, saved by :meth:`stop`
    and every ``save_interval`` seconds, so that a restart only fetches what changed; one that is
    damaged or was made with other filters is ignored. ``lookup_fields``: columns for
    :meth:`lookup`, which together should be unique (default: the key, in its order). ``indexes``:
    columns by name of index, for :meth:`lookup_index`, or a :class:`TableIndex` that may be unique.
    ``filters``: see :func:`equals`, :func:`prefix`, :func:`is_in`. ``tls``, ``token``: as the
    server needs them. ``transport``: ``connect`` speaks the Connect protocol over HTTP/1.1;
    ``server`` is then the server's port for it (4003).

    Thread-safe. A context manager: entering starts it, leaving stops it. It reconnects by itself
    with growing, random waits, for as long as it takes, and resumes where it was.

    :raises BadEndpoint: if ``server`` isn't host:port, or a list of them.
    :raises BadTableName: if ``table`` isn't schema.table.
    """

    _listening: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Begin to follow the table, in the background; without effect when it runs.

        Those of :meth:`follow` start, too.

        :raises BadEndpoint: if the TLS files can't be used.
        """
        self._servers.check()
        self._started = True
        for client in self._with_siblings():
            client._start()

    def _start(self) -> None:
        with self._guard:
            if self._follower is not None and self._follower.error is None:
                return
            # One thread of its own: a listener that is slow holds up this client only.
            self._listening = ThreadPoolExecutor(1, f"laredo-listeners-{self.table}")
            call(self._begin())

    def await_ready(self, timeout: float | None = None) -> None:
        """Wait until the rows are those that the server had when this client connected, or later.

        :raises NotReadyInTime: after ``timeout`` seconds.
        :raises ClientError: what ended the client for good, such as TableNotFound; or if a listener
            would wait, as the stream waits for it.
        """
        call(self._running().await_ready(timeout, by_listener=self._in_listener))

    def lookup(self, *values: object) -> Row | None:
        """The row whose lookup fields have these values, or None.

        Numbers are exact: int, float if it prints as the same number, else Decimal. Strings of the
        row's JSON stay strings: numeric, timestamps, uuid. A number and the string of its digits
        are the same value here. A json column that no Python value can represent is a
        :class:`RawJson`, its text, and is looked up by that text.

        :raises BadField: if the values don't fit the lookup fields.
        """
        return self._find(values)

    def lookup_index(self, name: str, *values: object) -> list[Row]:
        """The rows that the index finds, in the order of their keys.

        :raises BadField: if there is no such index, or the values don't fit it.
        """
        return self._find_all(name, values)

    def rows(self, timeout: float | None = 30.0) -> RowIterator:
        """All rows of one moment, in no order: each whole transaction up to its ``position``.

        Later changes aren't in them, and nothing waits for the iteration: a part of the rows (1 of
        256) is copied if it changes before the iteration has passed it. Values are as
        :meth:`lookup` returns them. A call in the middle of a transaction that comes in parts
        returns the rows before it; the first call waits for its end instead. Before the first
        snapshot there are no rows.

        :raises NotReadyInTime: if such a transaction doesn't end within ``timeout`` seconds.
        :raises ClientError: what ended the client in the middle of one; or if a listener would
            wait, as the stream waits for it.
        """
        return RowIterator(call(self._view(timeout, by_listener=self._in_listener)))

    def to_arrow(
        self,
        timeout: float | None = 30.0,
        *,
        numeric_as: str = "string",
        special_values: str = "error",
        array_dimensions: Mapping[str, int] | None = None,
    ) -> "pa.Table":
        """All rows of one moment as an Arrow table, in no order, with the types of an archive.

        The moment is that of :meth:`rows`; its position is in the schema's metadata as
        ``laredo.position``. The types' options are those of ``laredo_archive.open_archive``. Before
        the first snapshot there are neither rows nor columns.

        :raises ImportError: if pyarrow isn't installed.
        :raises ArchiveError: if a value has no place in its column's type.
        :raises NotReadyInTime, ClientError: as :meth:`rows`.
        """
        try:
            from laredo_fanout.client.table.arrow_rows import table_of
        except ModuleNotFoundError as missing:
            raise ImportError(NEEDS_PYARROW, name=missing.name) from missing
        view = call(self._view(timeout, by_listener=self._in_listener))
        return table_of(view, numeric_as, special_values, array_dimensions)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener(old, new)`` for every row that changes from now on; returns a function
        that ends this.

        ``old`` is None for a new row, ``new`` for a deleted one. Calls come in commit order, on one
        thread, after the rows have changed; the stream waits for them. A new snapshot arrives as
        its differences. An exception of a listener, even SystemExit, is logged once and counted in
        :attr:`listener_errors`, and the next listener is called.
        """
        return self._listeners.add(listener)

    def stop(self) -> None:
        """End the stream and save the local snapshot; the rows stay. start() resumes.

        Listeners aren't called any more, not even for a change that is in the rows already and is
        waiting for a listener; a call that has begun isn't waited for. Those of :meth:`follow`
        stop, too.
        """
        self._started = False
        for client in self._with_siblings():
            client._stop()

    def follow(
        self,
        table: str,
        *,
        local_snapshot_path: str | os.PathLike[str] | None = None,
        lookup_fields: Sequence[str] | None = None,
        indexes: Mapping[str, Sequence[str] | TableIndex] | None = None,
        filters: Iterable[Filter] = (),
    ) -> Self:
        """Follow another table of the server too: a client of its own, over this one's connection.

        It has its own rows, listeners, readiness and error: what ends one doesn't end the other.
        Server, token, TLS and backoff are this one's. It starts and stops with this one; its own
        ``start()`` and ``stop()`` concern its table alone. By gRPC all tables share one connection,
        by Connect over HTTP/1.1 each has one. :attr:`tables` has all of them.

        :raises BadTableName: if ``table`` isn't schema.table, or is followed already.
        """
        client = self._another(table, local_snapshot_path, lookup_fields, indexes, filters)
        if self._owner._started:
            client.start()
        return client

    def _stop(self) -> None:
        with self._guard:
            if self._follower is None or self._listening is None:
                return
            call(self._follower.stop())
            self._listening.shutdown(wait=False)
            self._listening = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def _begin(self) -> None:
        self._follower = self._make_follower(
            wanted=lambda: bool(self._listeners),
            deliver=self._deliver,
            at_once=_AT_ONCE,
            ended=lambda error: None,
        )
        self._follower.start()

    def _running(self) -> Follower:
        if self._follower is None:
            raise ClientStopped("the client isn't started; call start() first")
        return self._follower

    async def _deliver(self, differences: Iterable[Difference]) -> None:
        if (thread := self._listening) is not None:
            await asyncio.get_running_loop().run_in_executor(
                thread, self._notify, thread, differences
            )

    @property
    def _in_listener(self) -> bool:
        """True if one of this client's listeners is the caller."""
        return getattr(_thread, "client", None) is self

    def _notify(self, thread: ThreadPoolExecutor, differences: Iterable[Difference]) -> None:
        _thread.client = self
        # A client that was stopped and started again has another thread, which waits for the turn.
        with self._listeners.turn:
            for difference in differences:
                if thread is not self._listening:
                    return
                old, new, _, _ = to_rows(difference)
                for listener in self._listeners:
                    self._call(listener, old, new, difference.key)

    def _call(self, listener: Listener, old: Row | None, new: Row | None, key: bytes) -> None:
        try:
            listener(old, new)
        except BaseException as error:  # noqa: BLE001  # sys.exit() would end every client's loop
            self._listeners.failed(listener, key, error)
