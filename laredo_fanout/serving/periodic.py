"""ListSnapshots and FetchSnapshot: the calls that serve the periodic snapshot files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from functools import partial
from typing import TypeVar

import structlog

from laredo_fanout import snapshots
from laredo_fanout.serving import slices
from laredo_fanout.serving.call import check_snapshot_id, decode, table_name
from laredo_fanout.serving.errors import BadRequest, NotServed, SnapshotBroken, SnapshotsHang
from laredo_fanout.serving.forms import row_messages, timestamp
from laredo_fanout.serving.options import ServingTableOptions
from laredo_fanout.serving.slices import DaemonThreads, mount_of
from laredo_fanout.serving.struct_rows import Encoder, StructRows
from laredo_fanout.snapshots import (
    SnapshotDirectory,
    SnapshotFileDamaged,
    SnapshotInfo,
    SnapshotUnknown,
)
from laredo_fanout.wire import replication_pb2 as wire
from laredo_fanout.wire.protobuf import tag
from laredo_model import position

log = structlog.get_logger(__name__)
T = TypeVar("T")

_THREADS = 4
_PATIENCE_S = 5.0
"""Longest wait for a directory's names and heads, in seconds."""
_ROW = tag(wire.FetchSnapshotResponse.DESCRIPTOR.fields_by_name["row"].number)


def parse_list(data: bytes) -> tuple[str, int | None]:
    """Table and limit of a ListSnapshotsRequest; no limit means all.

    :raises BadRequest: it can't be decoded, names no table, or its limit is negative.
    """
    asked = decode(wire.ListSnapshotsRequest, data)
    if asked.limit < 0:
        raise BadRequest(f"limit is negative: {asked.limit}")
    return table_name(asked.schema, asked.table), asked.limit or None


def parse_fetch(data: bytes) -> str:
    """The snapshot id of a FetchSnapshotRequest.

    :raises BadRequest: it can't be decoded, or names no snapshot.
    """
    asked = decode(wire.FetchSnapshotRequest, data)
    if not asked.snapshot_id:
        raise BadRequest("snapshot_id is empty: ListSnapshots returns those that exist")
    check_snapshot_id(asked.snapshot_id)
    return asked.snapshot_id


class PeriodicSnapshots:
    """The snapshot files of all tables, as clients see them."""

    def __init__(self, tables: Mapping[str, ServingTableOptions]) -> None:
        self._threads: dict[str, DaemonThreads] = {}
        """For names and heads, by mount: one that hangs keeps no other from being read."""
        self._files: dict[str, DaemonThreads] = {}
        self.change(tables)

    def change(self, tables: Mapping[str, ServingTableOptions]) -> None:
        """Serve the snapshots of these tables from now on."""
        paths = {name: each.snapshot_path for name, each in tables.items() if each.snapshot_path}
        self._directories = {name: SnapshotDirectory(path) for name, path in paths.items()}
        self._places = {name: mount_of(path) for name, path in paths.items()}
        for place in self._places.values():
            self._threads.setdefault(place, DaemonThreads(_THREADS, "snapshots"))
            self._files.setdefault(place, DaemonThreads(_THREADS, "snapshot-files"))

    async def _run(self, table: str, work: Callable[[], T]) -> T:
        """Do ``work`` in a thread.

        :raises TimeoutError: if the table's directory hangs.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_PATIENCE_S):
            return await loop.run_in_executor(self._threads[self._places[table]], work)

    async def infos(self, table: str, limit: int | None = None) -> list[SnapshotInfo]:
        """The table's snapshots, newest first; none if it has no periodic snapshots."""
        directory = self._directories.get(table)
        if directory is None:
            return []
        try:
            found = await self._run(table, directory.snapshots)
        except TimeoutError:
            log.warning("periodic snapshots not read: the directory hangs", table=table)
            return []
        return [each for each in found if each.table == table][:limit]

    async def sequence(self, snapshot_id: str, table: str, table_id: int) -> int | None:
        """The newest entry in the snapshot; None if the incarnation has no such snapshot."""
        directory = self._directories.get(table)
        if directory is None:
            return None
        try:
            found = await self._run(table, partial(directory.find, snapshot_id))
        except (SnapshotUnknown, TimeoutError):
            return None
        return found.sequence if (found.table, found.table_id) == (table, table_id) else None

    def check(self, snapshot_id: str) -> None:
        """:raises NotServed: the id's table has no periodic snapshots."""
        if snapshots.table_of(snapshot_id) not in self._directories:
            raise NotServed(str(SnapshotUnknown(snapshot_id)))

    async def fetch(
        self, snapshot_id: str, structs: StructRows
    ) -> AsyncGenerator[list[bytes], None]:
        """The FetchSnapshotResponses of one snapshot, whose id was checked, some at a time.

        :raises NotServed: there is no such snapshot (any more).
        :raises SnapshotBroken: the file isn't what was written.
        """
        try:
            table = snapshots.table_of(snapshot_id)
            directory = self._directories.get(table)
            if directory is None:  # since a reload
                raise SnapshotUnknown(snapshot_id)
            threads = self._files[self._places[table]]
            found = await self._run(table, partial(directory.find, snapshot_id))
            begin = wire.SnapshotBegin(
                snapshot_id=found.snapshot_id, sequence=found.sequence, row_count=found.rows
            )
            yield [wire.FetchSnapshotResponse(begin=begin).SerializeToString()]
            encoder = Encoder(structs)
            with _Reading(directory.read(found), threads) as reading:
                while lines := await reading.next():
                    yield await slices.run(row_messages(encoder, _ROW, lines))
            end = wire.SnapshotEnd(sequence=found.sequence, rows_sent=found.rows)
            yield [wire.FetchSnapshotResponse(end=end).SerializeToString()]
        except SnapshotUnknown as unknown:
            raise NotServed(str(unknown)) from unknown
        except SnapshotFileDamaged as damaged:
            raise SnapshotBroken(str(damaged)) from damaged
        except TimeoutError as hangs:
            raise SnapshotsHang(f"{table}: not read within {_PATIENCE_S:g} s") from hangs


class _Reading:
    """A snapshot file that is read in threads, and closed however early the call ends."""

    def __init__(self, batches: Generator[list[bytes], None, None], threads: DaemonThreads) -> None:
        self._batches = batches
        self._threads = threads
        self._step: asyncio.Future[list[bytes] | None] | None = None

    async def next(self) -> list[bytes] | None:
        """The next lines; None at the end."""
        loop = asyncio.get_running_loop()
        self._step = loop.run_in_executor(self._threads, next, self._batches, None)
        # A thread can't be cancelled: it is left to end by itself.
        return await asyncio.shield(self._step)

    def __enter__(self) -> _Reading:
        return self

    def __exit__(self, *_: object) -> None:
        if self._step is None or self._step.done():
            self._batches.close()
        else:
            self._step.add_done_callback(self._close)

    def _close(self, step: asyncio.Future[list[bytes] | None]) -> None:
        if not step.cancelled():
            step.exception()
        self._batches.close()


def info_message(info: SnapshotInfo) -> wire.ReplicationSnapshotInfo:
    """A snapshot as the wire describes it."""
    return wire.ReplicationSnapshotInfo(
        snapshot_id=info.snapshot_id,
        sequence=info.sequence,
        source_position=position.text(info.position),
        row_count=info.rows,
        size_bytes=info.size_bytes,
        created_at=timestamp(info.created_at_us),
    )
