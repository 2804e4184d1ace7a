"""A served table with an archive, and a client that is caught up from it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from laredo_archive.storage.destination import Destination
from laredo_fanout.serving.options import ArchiveOptions, ServingTableOptions
from laredo_fanout.serving.replay import Outcome
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import position as position_
from laredo_model.line import Action
from tests.support.server.archived import Archived, State, local, options
from tests.support.server.serving_world import HISTORY, Stream, World, running

REPLAY, FULL, DELTA = (
    wire.SYNC_MODE_REPLAY_ARCHIVE,
    wire.SYNC_MODE_FULL_SNAPSHOT,
    wire.SYNC_MODE_DELTA,
)

INSERT, UPDATE, DELETE, TRUNCATE = Action


@asynccontextmanager
async def archived(
    tmp_path: Path,
    *,
    destination: Destination | None = None,
    where: ArchiveOptions | None = None,
    heartbeat_interval_s: float = 0.1,
    formats: tuple[str, ...] = ("jsonl",),
    rows: int | None = None,
    **more: Any,
) -> AsyncIterator[tuple[World, Archived]]:
    """A served table with an archive; with ``rows``, that many were copied."""
    table = ServingTableOptions(
        archive=where or options(tmp_path / "archive", formats),
        heartbeat_interval_s=heartbeat_interval_s,
    )
    outcomes: list[Outcome] = []

    def on_replay(_: str, outcome: Outcome) -> None:
        outcomes.append(outcome)

    async with running(tmp_path / "state", table=table, on_replay=on_replay, **more) as world:
        archive = Archived(world.writer, destination or local(tmp_path / "archive"), formats)
        archive.outcomes = outcomes
        if rows is not None:
            archive.copied(range(rows))
        yield world, archive


class Reader:
    """A batch client that held `state` at `position`, reading until it is level."""

    def __init__(self, world: World, state: State, position: int, **request: Any) -> None:
        self.state = dict(state)
        self.position = position
        self.sequences: list[int] = []
        self.positions: list[int] = []
        self.since: dict[int, int] = {}
        """Start of a transaction that replaces others before it, by its position."""
        self.changes: list[tuple[int, bytes, bytes, bytes]] = []
        self.mode = 0
        self.handshake: Any = None
        self._world = world
        self._open = False
        self._stream: Stream = world.sync(
            batch=True,
            last_known_source_position=position_.text(position),
            history=str(request.pop("history", HISTORY)),
            **request,
        )

    async def level(self) -> int:
        """Read until all that the server has was sent; the mode."""
        self.handshake = await self._stream.next("handshake")
        self.mode = self.handshake.mode
        wanted = self._world.writer.position
        while True:
            message = await self._stream.next_of_any()
            self.take(message)
            if isinstance(message, wire.Heartbeat):
                at = position_.parse(message.source_position)
                assert not (self._open and at > self.position)
                if at >= wanted:
                    self._stream.cancel()
                    return self.mode

    def take(self, message: Any) -> None:
        if isinstance(message, wire.SnapshotBegin):
            self.state = {}
        elif isinstance(message, wire.SnapshotBatch):
            self.state |= dict(zip(message.keys, message.lines, strict=True))
        elif isinstance(message, wire.ChangeBatch):
            self.apply(message)

    def apply(self, batch: wire.ChangeBatch) -> None:
        sequences = batch.sequences or range(
            batch.first_sequence, batch.first_sequence + len(batch.actions)
        )
        self.sequences += sequences
        olds = batch.old_lines or [b""] * len(batch.keys)
        for action, key, row, old in zip(batch.actions, batch.keys, batch.lines, olds, strict=True):
            self.changes.append((action, key, row, old))
            if action == TRUNCATE:
                self.state = {}
            elif action == DELETE:
                self.state.pop(key, None)
            else:
                self.state[key] = row
        self._open = batch.open
        if batch.since_position:
            self.since[batch.positions[0]] = batch.since_position
        for position in batch.positions[: len(batch.positions) - batch.open]:
            assert position > self.position, "a position that was there before"
            self.position = position
            self.positions.append(position)


async def read(world: World, table: Archived, position: int, **request: Any) -> Reader:
    reader = Reader(world, table.state_at(position), position, **request)
    await reader.level()
    return reader


def names_of(state: State) -> dict[int, str]:
    return {int(key): orjson.loads(row)["name"] for key, row in state.items()}
