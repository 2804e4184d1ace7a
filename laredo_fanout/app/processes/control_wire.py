"""The messages between main and serving process: length-prefixed JSON over a socket pair.

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
    {"op": "check"}                                              a client waits for a catalog check
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


def info_to_json(info: ClientInfo) -> Message:
    return asdict(info)


def info_from_json(message: Message) -> ClientInfo:
    return ClientInfo(**message)


def state_to_json(client: ClientState) -> Message:
    return asdict(client)


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
