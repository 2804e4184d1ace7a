"""Takes a periodic snapshot: writes the rows, verifies the position, removes expired ones."""

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep, time
from typing import BinaryIO

import structlog

from laredo_fanout.snapshots import info as info_
from laredo_fanout.snapshots.directory import INFO, ROWS, SnapshotDirectory
from laredo_fanout.snapshots.errors import (
    SnapshotBusy,
    SnapshotUnverified,
    SnapshotUnwritable,
)
from laredo_fanout.snapshots.info import SnapshotInfo
from laredo_fanout.store.errors import TableUnknown
from laredo_fanout.store.reader import StoreReader
from laredo_fanout.store.snapshot import Snapshot
from laredo_model.checksum import StateChecksum
from laredo_service import files as files_
from laredo_service import private_directory
from laredo_service.files import Digest
from laredo_service.private_directory import private

UNFINISHED = ".unfinished-"
_LOCK = ".lock"
_POLL_S = 0.05

log = structlog.get_logger("laredo_fanout.snapshots")


@dataclass(frozen=True, slots=True)
class Retention:
    """``keep_count`` snapshots at most, none older than ``max_age_s`` s; always the newest."""

    keep_count: int
    max_age_s: float

    def expired(self, newest_first: Sequence[SnapshotInfo], now_us: int) -> list[SnapshotInfo]:
        """Those that go, oldest first."""
        oldest = now_us - int(self.max_age_s * 1_000_000)
        gone = [
            each
            for index, each in enumerate(newest_first)
            if index and (index >= self.keep_count or each.created_at_us < oldest)
        ]
        return gone[::-1]


@dataclass(frozen=True, slots=True)
class Taken:
    """The outcome of :func:`take`."""

    #: The newest snapshot.
    snapshot: SnapshotInfo
    #: Whether it is new.
    written: bool
    #: The ids of the snapshots that had expired.
    removed: tuple[str, ...]


def take(
    reader: StoreReader,
    table: str,
    directory: Path,
    retention: Retention,
    *,
    verified_within_s: float | None = None,
) -> Taken:
    """Write a snapshot of ``table`` ("schema.name") and remove those that are too old.

    Nothing is written if the newest one has the same rows already. A snapshot
    appears whole or not at all; what an earlier, killed process left is removed. It appears only
    once a catalog check has verified its position: else its rows may miss a silent DDL.
    That takes at most ``verified_within_s``; None: the source has no catalog to check.

    :raises TableUnknown: if the store has no such table.
    :raises TableHidden: if it isn't consistent yet.
    :raises SnapshotBusy: if another process is writing there.
    :raises SnapshotUnverified: if no check verified its position, or the table was changed.
    :raises SnapshotUnwritable: if the directory or its disk doesn't take it.
    """
    files = SnapshotDirectory(directory)
    try:
        private_directory.make(directory, (_LOCK,))
        with _locked(directory):
            _remove_unfinished(files)
            made, new = _write_rows_if_changed(reader, table, files)
            if new:
                if verified_within_s is not None:
                    _await_verified(reader, made, verified_within_s)
                _write_info(made, files)
            removed = _remove_expired(files, retention)
    except OSError as failed:
        raise SnapshotUnwritable(str(directory), failed.strerror or str(failed)) from failed
    return Taken(made, new, removed)


def _await_verified(reader: StoreReader, made: SnapshotInfo, within_s: float) -> None:
    deadline = monotonic() + within_s
    while True:
        try:
            view = reader.table_by_id(made.table_id)
        except TableUnknown as gone:
            raise SnapshotUnverified(made.table, made.position, "it was copied again") from gone
        if view.boundary_at(made.position) >= made.position:
            return
        if view.suspect(made.position):
            why = "rows that had moved with a partition were repaired since"
            raise SnapshotUnverified(made.table, made.position, why)
        if not view.live:
            raise SnapshotUnverified(made.table, made.position, f"it is {view.status.value}")
        if monotonic() >= deadline:
            raise SnapshotUnverified(
                made.table, made.position, f"not within {within_s:g} s: it may be being altered"
            )
        sleep(_POLL_S)


def _write_rows_if_changed(
    reader: StoreReader, table: str, files: SnapshotDirectory
) -> tuple[SnapshotInfo, bool]:
    with reader.snapshot(reader.table(table).id) as rows:
        newest = files.newest()
        if (
            newest is not None
            and newest.table == table
            and (newest.table_id, newest.sequence) == (rows.view.id, rows.sequence)
        ):
            return newest, False
        source = reader.source()
        history = str(source.history) if source else ""
        return _write_rows(rows, history, files), True


def _write_rows(rows: Snapshot, history: str, files: SnapshotDirectory) -> SnapshotInfo:
    view = rows.view
    digest, checksum = Digest(), StateChecksum()
    name = info_.file_name(rows.position, rows.sequence)
    with _atomic(files.path / (name + ROWS)) as file:
        for _, lines in rows.batches():
            block = b"\n".join(lines) + b"\n"
            file.write(block)
            digest.update(block)
            checksum.add(lines)
    return SnapshotInfo(
        snapshot_id=info_.snapshot_id(view.name, rows.position, rows.sequence),
        table=view.name,
        table_id=view.id,
        sequence=rows.sequence,
        position=rows.position,
        history=history,
        rows=checksum.rows,
        size_bytes=digest.size,
        sha256=digest.hex(),
        state_checksum=checksum.hex(),
        created_at_us=int(time() * 1_000_000),
        columns=view.columns,
    )


def _write_info(made: SnapshotInfo, files: SnapshotDirectory) -> None:
    """Write the info, which makes the snapshot complete."""
    name = info_.file_name(made.position, made.sequence)
    with _atomic(files.path / (name + INFO)) as file:
        file.write(made.to_bytes())


def _remove_expired(files: SnapshotDirectory, retention: Retention) -> tuple[str, ...]:
    expired = retention.expired(files.snapshots(), int(time() * 1_000_000))
    for each in expired:
        files.info_file(each).unlink()
        files.rows_file(each).unlink()
    if expired:
        files_.sync_directory(files.path)
    return tuple(each.snapshot_id for each in expired)


def _remove_unfinished(files: SnapshotDirectory) -> None:
    """Remove what isn't a snapshot and never will be."""
    for path in files.path.iterdir():
        orphan = path.suffix == ROWS and not path.with_suffix(INFO).exists()
        if orphan or path.name.startswith(UNFINISHED):
            log.info("unfinished snapshot removed", path=str(path))
            path.unlink()


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One process at a time writes into a directory."""
    with open(directory / _LOCK, "wb", opener=private) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SnapshotBusy(str(directory)) from None
        yield


@contextmanager
def _atomic(path: Path) -> Iterator[BinaryIO]:
    """A file that is there, durable, once the block ends without an error; else nothing is."""
    unfinished = path.with_name(UNFINISHED + path.name)
    with (
        open(unfinished, "wb", opener=private) as file,
        files_.replacing(path, unfinished, file),
    ):
        yield file
