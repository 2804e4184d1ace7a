"""Clients behind the journal, caught up from an archive: mode, rows, positions and numbers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from laredo_archive.destination import Destination
from laredo_fanout.serving.options import TableOptions
from laredo_fanout.serving.replay import Outcome
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import position as position_
from laredo_model.change import Action
from tests.fanout.serving.archived import Archived, State, local, options
from tests.fanout.serving.world import HISTORY, Stream, World, running

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
    outcomes: list[Outcome] | None = None,
    **more: Any,
) -> AsyncIterator[tuple[World, Archived]]:
    """A served table with an archive."""
    table = TableOptions(archive=options(tmp_path / "archive"), heartbeat_interval_s=0.1)
    told: Callable[[str, Outcome], None] = lambda _, outcome: (  # noqa: E731
        outcomes.append(outcome) if outcomes is not None else None
    )
    async with running(tmp_path / "state", table=table, on_replay=told, **more) as world:
        yield world, Archived(world.writer, destination or local(tmp_path / "archive"))


class Reader:
    """A batch client that held `state` at `position`, reading until it is level."""

    def __init__(self, world: World, state: State, position: int, **request: Any) -> None:
        self.state = dict(state)
        self.position = position
        self.sequences: list[int] = []
        self.positions: list[int] = []
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
        for position in batch.positions[: len(batch.positions) - batch.open]:
            assert position > self.position, "a position that was there before"
            self.position = position
            self.positions.append(position)


async def read(world: World, table: Archived, position: int, **request: Any) -> Reader:
    reader = Reader(world, table.state_at(position), position, **request)
    await reader.level()
    return reader


async def test_a_client_at_a_boundary_is_caught_up_from_the_archive(tmp_path: Path) -> None:
    outcomes: list[Outcome] = []
    async with archived(tmp_path, outcomes=outcomes) as (world, table):
        table.copied(range(5))
        first = table.position
        ends = []
        for number in range(4):
            table.commit((number, f"at {number}"), (10 + number, "new"))
            table.commit((number, f"then {number}"))
            table.cut()
            ends.append(table.position)
        table.prune()
        table.commit((2, "live"))
        found = await read(world, table, first)
        assert found.mode == REPLAY
        assert found.state == table.state
        assert found.positions == [*ends, table.position]
        assert outcomes == [Outcome.COMPLETE]
        # Net changes: two keys a diff, numbered to just below the journal's oldest entry.
        oldest = found.handshake.journal_oldest_sequence
        assert found.sequences == [*range(oldest - 8, oldest), found.sequences[-1]]
        assert found.handshake.resume_from_sequence == oldest - 8
        assert found.sequences[-1] == found.handshake.server_current_sequence
        later = await read(world, table, ends[1])
        assert (later.mode, later.state) == (REPLAY, table.state)
        assert later.positions == [*ends[2:], table.position]
