"""Messages between main and serving process, and the bytes that wake a serving process.

serving -> main
    {"op": "listening", "port": n}
    {"op": "register", "call": c, "lease": l, "info": {...}}     answered
    {"op": "update", "leases": [[l, sequence, depth, state], ...]}
    {"op": "pin", "call": c, "lease": l, "table": t, "after": s} answered
    {"op": "unpin", "lease": l}
    {"op": "close", "lease": l, "reason": r}
    {"op": "clients", "call": c, "table": name}                  answered
    {"op": "replay", "table": name, "outcome": o}
    {"op": "sent", "bytes": b, "messages": m}                    since the last one
    {"op": "standby", "call": c, "server": id, "tables": {...},
     "take_over": id}                                            answered
    {"op": "check"}                                              a client waits for a catalog check
    {"op": "damaged", "damage": [...]}                           store.errors.Damage
    {"op": "changed"}                                            answers change
main -> serving
    {"op": "options", "state": path, "serving": {...}}           the first, unless it is drain
    {"op": "health", "ready": bool}                              the state of /health/ready now
    {"op": "change", "serving": {...}}                           other options, as of a reload
    {"op": "drain"}
    {"op": "answer", "call": c, ...}
"""

from __future__ import annotations

import asyncio
import socket
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from laredo_fanout.serving.options import (
    ArchiveOptions,
    BufferPolicy,
    ConnectOptions,
    ListenerOptions,
    ServingOptions,
    ServingTableOptions,
    TlsFiles,
)
from laredo_fanout.serving.ports import ClientInfo, ClientState

Message = dict[str, Any]
_LENGTH = 4
_LIMIT = 64 << 20


class ControlClosed(Exception):
    """The other process is gone."""


class Control:
    """One end of a control connection. Sending never waits: the kernel and a buffer take it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def over(cls, end: socket.socket) -> Control:
        """Make it from one end of a socket pair."""
        end.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, message: Message) -> None:
        """Send a message; one to a process that is gone is dropped (``receive`` raises)."""
        if not self._writer.is_closing():
            data = orjson.dumps(message)
            self._writer.write(len(data).to_bytes(_LENGTH, "big") + data)

    async def receive(self) -> Message:
        """Wait for the next message.

        :raises ControlClosed: if the other process is gone.
        """
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH), "big")
            if length > _LIMIT:
                raise ControlClosed(f"a control message of {length} bytes: not ours")
            message: Message = orjson.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError) as gone:
            raise ControlClosed("the other process is gone") from gone
        return message

    async def close(self) -> None:
        """Close this end, which the other one notices at once."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return


def state_from_json(message: Message) -> ClientState:
    return ClientState(**{**message, "info": ClientInfo(**message["info"])})


def options_to_json(options: ServingOptions) -> Message:
    """The options as JSON values: paths as text."""
    plain: Message = orjson.loads(orjson.dumps(asdict(options), default=str))
    return plain


def options_from_json(message: Message) -> ServingOptions:
    """Read the options that :func:`options_to_json` wrote."""
    listener = message["listener"]
    tls, connect = listener["tls"], listener["connect"]
    return ServingOptions(
        listener=ListenerOptions(
            **{
                **listener,
                "tls": None
                if tls is None
                else TlsFiles(Path(tls["cert"]), Path(tls["key"]), _path(tls["client_ca"])),
                "tokens_file": _path(listener["tokens_file"]),
                "spool_path": _path(listener["spool_path"]),
                "connect": None if connect is None else ConnectOptions(**connect),
            }
        ),
        tables={
            name: ServingTableOptions(
                **{
                    **table,
                    "buffer_policy": BufferPolicy(table["buffer_policy"]),
                    "snapshot_path": _path(table["snapshot_path"]),
                    "archive": _archive(table["archive"]),
                }
            )
            for name, table in message["tables"].items()
        },
    )


def _archive(message: Message | None) -> ArchiveOptions | None:
    if message is None:
        return None
    path, formats = _path(message["path"]), tuple(message["formats"])
    return ArchiveOptions(**{**message, "path": path, "formats": formats})


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


# Wake-ups of the serving processes: one byte over a socket pair for each durable commit.
#
# The ingest thread sends by itself, so that a busy event loop in the main process delays no client.
# A full socket needs no byte: a wake-up is waiting in it.


class WakeUps:
    """The main process's side: wakes every serving process."""

    def __init__(self) -> None:
        self._ends: tuple[socket.socket, ...] = ()
        self._lock = threading.Lock()

    def add(self, end: socket.socket) -> None:
        """Notify this end from now on, and once at once, for what came before."""
        end.setblocking(False)
        with self._lock:
            self._ends = (*self._ends, end)
        self._send(end)

    def remove(self, end: socket.socket) -> None:
        """Stop notifying this end, and close it."""
        with self._lock:
            self._ends = tuple(each for each in self._ends if each is not end)
            end.close()

    def notify(self) -> None:
        """Wake all serving processes: something is durable. From any thread; never waits."""
        for end in self._ends:
            self._send(end)

    @staticmethod
    def _send(end: socket.socket) -> None:
        try:
            end.send(b"\1", socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return
        except OSError:
            # The process is gone, or its end was closed meanwhile: the supervisor sees it too.
            return


class SocketWakeups:
    """The serving process's side: the ``Wakeups`` of ``serving.ports``."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._end.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._end, self._readable)

    def current(self) -> asyncio.Future[None]:
        return self._future

    def _readable(self) -> None:
        try:
            data = self._end.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            # The main process is gone; the control connection ends this one.
            self._loop.remove_reader(self._end)
            return
        future, self._future = self._future, self._loop.create_future()
        if not future.done():
            future.set_result(None)
