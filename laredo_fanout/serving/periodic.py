"""ListSnapshots and FetchSnapshot: the periodic snapshots that the ingest side keeps as files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from google.protobuf.message import DecodeError

from laredo_fanout.serving.base_form import row_message
from laredo_fanout.serving.errors import BadRequest, NotServed, SnapshotBroken
from laredo_fanout.serving.forms import timestamp
from laredo_fanout.serving.options import TableOptions
from laredo_fanout.serving.request import table_name
from laredo_fanout.serving.struct_rows import StructRows
from laredo_fanout.snapshots import info as info_
from laredo_fanout.snapshots.directory import SnapshotDirectory
from laredo_fanout.snapshots.errors import SnapshotDamaged, SnapshotUnknown
from laredo_fanout.snapshots.info import SnapshotInfo
from laredo_fanout.wire import replication_pb2 as wire
from laredo_fanout.wire.protobuf import tag
from laredo_model import position as position_

_ROW = tag(wire.FetchSnapshotResponse.DESCRIPTOR.fields_by_name["row"].number)


def parse_list(data: bytes) -> tuple[str, int | None]:
    """Table and limit of a ListSnapshotsRequest; no limit means all.

    :raises BadRequest: it can't be decoded, names no table, or its limit is negative.
    """
    try:
        asked = wire.ListSnapshotsRequest.FromString(data)
    except DecodeError as error:
        raise BadRequest(f"not a ListSnapshotsRequest: {error}") from error
    if asked.limit < 0:
        raise BadRequest(f"limit is negative: {asked.limit}")
    return table_name(asked.schema, asked.table), asked.limit or None


def parse_fetch(data: bytes) -> str:
    """The snapshot id of a FetchSnapshotRequest.

    :raises BadRequest: it can't be decoded, or names no snapshot.
    """
    try:
        asked = wire.FetchSnapshotRequest.FromString(data)
    except DecodeError as error:
        raise BadRequest(f"not a FetchSnapshotRequest: {error}") from error
    if not asked.snapshot_id:
        raise BadRequest("snapshot_id is empty: ListSnapshots tells which there are")
    return asked.snapshot_id


class PeriodicSnapshots:
    """The snapshot files of all tables, as clients see them."""

    def __init__(self, tables: Mapping[str, TableOptions]) -> None:
        self._directories = {
            name: SnapshotDirectory(options.snapshot_path)
            for name, options in tables.items()
            if options.snapshot_path is not None
        }

    async def infos(self, table: str, limit: int | None = None) -> list[SnapshotInfo]:
        """The table's snapshots, newest first; none if it has no periodic snapshots."""
        directory = self._directories.get(table)
        if directory is None:
            return []
        found = await asyncio.to_thread(directory.snapshots)
        return [each for each in found if each.table == table][:limit]

    def sequence(self, snapshot_id: str, table: str, table_id: int) -> int | None:
        """The newest entry in a snapshot of this incarnation; None if there is no such one."""
        directory = self._directories.get(table)
        if directory is None:
            return None
        try:
            found = directory.find(snapshot_id)
        except SnapshotUnknown:
            return None
        return found.sequence if (found.table, found.table_id) == (table, table_id) else None

    async def fetch(self, snapshot_id: str, structs: StructRows) -> AsyncIterator[bytes]:
        """The FetchSnapshotResponses of one snapshot.

        :raises NotServed: there is no such snapshot (any more).
        :raises SnapshotBroken: the file isn't what was written.
        """
        directory = self._directories.get(info_.table_of(snapshot_id))
        try:
            if directory is None:
                raise SnapshotUnknown(snapshot_id)
            found = await asyncio.to_thread(directory.find, snapshot_id)
            begin = wire.SnapshotBegin(
                snapshot_id=found.snapshot_id, sequence=found.sequence, row_count=found.rows
            )
            yield wire.FetchSnapshotResponse(begin=begin).SerializeToString()
            batches = directory.read(found)
            while lines := await asyncio.to_thread(next, batches, None):
                for line in lines:
                    yield row_message(_ROW, structs.encode(line))
            end = wire.SnapshotEnd(sequence=found.sequence, rows_sent=found.rows)
            yield wire.FetchSnapshotResponse(end=end).SerializeToString()
        except SnapshotUnknown as unknown:
            raise NotServed(str(unknown)) from unknown
        except SnapshotDamaged as damaged:
            raise SnapshotBroken(str(damaged)) from damaged


def info_message(info: SnapshotInfo) -> wire.ReplicationSnapshotInfo:
    """A snapshot as the wire describes it."""
    return wire.ReplicationSnapshotInfo(
        snapshot_id=info.snapshot_id,
        sequence=info.sequence,
        source_position=position_.text(info.position),
        row_count=info.rows,
        size_bytes=info.size_bytes,
        created_at=timestamp(info.created_at_us),
    )
