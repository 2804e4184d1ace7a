"""Periodic snapshots: files with a table's rows at one position, in a directory for each table."""

import fcntl
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any, BinaryIO

import orjson
import structlog

from laredo_fanout.store.errors import TableUnknown
from laredo_fanout.store.reader import Snapshot, StoreReader
from laredo_model import column
from laredo_model import position as position_
from laredo_model.checksum import StateChecksum
from laredo_model.column import Column
from laredo_service import files as files_
from laredo_service.files import Digest, make_private, private

# A periodic snapshot's description: the small JSON file with its rows' file.

FORMAT = 1


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """The description of one periodic snapshot: a table's rows at one position."""

    #: Its name among all tables' snapshots.
    snapshot_id: str
    table: str
    #: The incarnation of the table.
    table_id: int
    #: The newest journal entry in it.
    sequence: int
    position: int
    #: The history of its position; "" if the store didn't know.
    history: str
    rows: int
    #: The size of the file of rows.
    size_bytes: int
    #: The sha256 of the file of rows.
    sha256: str
    #: The state checksum of the rows (``laredo_model.checksum``).
    state_checksum: str
    #: Microseconds since 1970.
    created_at_us: int
    columns: tuple[Column, ...]

    @property
    def name(self) -> str:
        """The name of its files, without extension."""
        return file_name(self.position, self.sequence)

    def to_bytes(self) -> bytes:
        """The bytes of the JSON file."""
        return orjson.dumps(
            {
                "format": FORMAT,
                **asdict(self),
                "position": position_.text(self.position),
                "columns": [each.to_json() for each in self.columns],
            },
            option=orjson.OPT_INDENT_2,
        )


def from_bytes(stored: bytes) -> SnapshotInfo:
    """Read the description that ``to_bytes`` wrote.

    :raises ValueError: if it isn't a description of this format.
    """
    try:
        read: dict[str, Any] = orjson.loads(stored)
        if read["format"] != FORMAT:
            raise ValueError(f"format {read['format']}, this version knows {FORMAT}")
        return SnapshotInfo(
            snapshot_id=str(read["snapshot_id"]),
            table=str(read["table"]),
            table_id=int(read["table_id"]),
            sequence=int(read["sequence"]),
            position=position_.parse(read["position"]),
            history=str(read["history"]),
            rows=int(read["rows"]),
            size_bytes=int(read["size_bytes"]),
            sha256=str(read["sha256"]),
            state_checksum=str(read["state_checksum"]),
            created_at_us=int(read["created_at_us"]),
            columns=tuple(column.from_json(each) for each in read["columns"]),
        )
    except (KeyError, TypeError, AttributeError) as wrong:
        raise ValueError(f"{type(wrong).__name__}: {wrong}") from wrong


def file_name(position: int, sequence: int) -> str:
    """The name of a snapshot's files, without extension."""
    return f"{position_.object_name(position)}-{sequence}"


def snapshot_id(table: str, position: int, sequence: int) -> str:
    """The id of a snapshot among all tables' snapshots."""
    return f"{table}@{file_name(position, sequence)}"


def table_of(snapshot_id: str) -> str:
    """The table whose snapshot this id names; "" if it names none."""
    return snapshot_id.rpartition("@")[0]


# Errors of periodic snapshots.
#
# SnapshotError
# ├── SnapshotUnknown      no snapshot with this id
# ├── SnapshotFileDamaged  the file isn't what was written
# ├── SnapshotBusy         another process is writing into the directory
# ├── SnapshotUnwritable   the directory can't be written
# └── SnapshotUnverified   no catalog check has verified its position


class SnapshotError(Exception):
    """Root of this package's errors."""


class SnapshotUnknown(SnapshotError):
    """No snapshot with this id (any more)."""

    def __init__(self, snapshot_id: str) -> None:
        super().__init__(f"there is no snapshot {snapshot_id!r}; list them to see which there are")


class SnapshotFileDamaged(SnapshotError):
    """A snapshot's file isn't what was written."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"the snapshot {path} is damaged: {why}; take another one, or remove it")


class SnapshotBusy(SnapshotError):
    """Another process is writing into the directory."""

    def __init__(self, directory: str) -> None:
        super().__init__(
            f"another process is writing snapshots into {directory}; give every server its own "
            "snapshot.store_config.path"
        )


class SnapshotUnwritable(SnapshotError):
    """The directory can't be written; earlier snapshots are untouched."""

    def __init__(self, directory: str, why: str) -> None:
        super().__init__(
            f"can't write a snapshot into {directory}: {why}; see that this user may write there,"
            " and that the disk has room"
        )


class SnapshotUnverified(SnapshotError):
    """No catalog check has verified its position: its rows may be from before a silent DDL."""

    def __init__(self, table: str, position: int, why: str) -> None:
        super().__init__(
            f"the snapshot of table {table} at {position_.text(position)} was given up: no catalog "
            f"check has verified that position ({why}); it is tried again"
        )


# The directory that holds one table's periodic snapshots.
#
# Each snapshot is two files: NAME.jsonl, a row's line per line in key order, and NAME.json, its
# info, which is written last and removed first: without it the rows are no snapshot.

ROWS = ".jsonl"
INFO = ".json"
_NAME = re.compile(r"[0-9A-F]{1,8}_[0-9A-F]{1,8}-(\d{1,20})" + re.escape(INFO))

_BLOCK = 1 << 20

log = structlog.get_logger("laredo_fanout.snapshots")


class SnapshotDirectory:
    """Lists and reads one table's snapshots; any number of processes may do so at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._logged: set[tuple[str, str]] = set()

    def snapshots(self) -> list[SnapshotInfo]:
        """The whole snapshots, newest first; damaged ones are logged once and left out."""
        found, _ = self.read_all()
        return found

    def read_all(self) -> tuple[list[SnapshotInfo], list[Path]]:
        """The whole snapshots, newest first, and the infos of damaged ones, which are logged."""
        found, damaged = [], []
        for path in self._info_files():
            try:
                found.append(self._read_info(path))
            except SnapshotFileDamaged as why:
                self._log_once(path, why)
                damaged.append(path)
            except FileNotFoundError:
                continue  # removed meanwhile
            except OSError as failed:
                self._log_once(path, SnapshotFileDamaged(str(path), _unreadable(failed)))
                damaged.append(path)
        found.sort(key=lambda each: (each.sequence, each.created_at_us), reverse=True)
        return found, damaged

    def newest(self) -> SnapshotInfo | None:
        """The newest whole snapshot."""
        return next(iter(self.snapshots()), None)

    def find(self, snapshot_id: str) -> SnapshotInfo:
        """The snapshot with this id.

        :raises SnapshotUnknown: if there is none, or a damaged one.
        """
        for each in self.snapshots():
            if each.snapshot_id == snapshot_id:
                return each
        raise SnapshotUnknown(snapshot_id)

    def read(self, snapshot: SnapshotInfo, rows: int = 1000) -> Generator[list[bytes], None, None]:
        """Read its rows' lines in key order, about ``rows`` at a time, checked as they are read.

        The file is opened at the first step; from then on removing it does no harm.

        :raises SnapshotUnknown: if it was removed meanwhile.
        :raises SnapshotFileDamaged: at the latest after the last line, if the
            file isn't what was written.
        """
        path = self.rows_file(snapshot)
        digest, count, begun = Digest(), 0, b""
        lines: list[bytes] = []
        for block in _blocks(path, snapshot.snapshot_id):
            digest.update(block)
            *whole, begun = (begun + block).split(b"\n")
            lines += whole
            count += len(whole)
            while len(lines) >= rows:
                yield lines[:rows]
                del lines[:rows]
        if lines:
            yield lines
        if begun or count != snapshot.rows:
            raise SnapshotFileDamaged(str(path), f"{count} rows, {snapshot.rows} were written")
        if digest.hex() != snapshot.sha256:
            raise SnapshotFileDamaged(str(path), "its sha256 differs from the one in its info")

    def rows_file(self, snapshot: SnapshotInfo) -> Path:
        """The file of its rows."""
        return self.path / (snapshot.name + ROWS)

    def info_file(self, snapshot: SnapshotInfo) -> Path:
        """The file of its info."""
        return self.path / (snapshot.name + INFO)

    def _info_files(self) -> list[Path]:
        try:
            return sorted(self.path.glob("[!.]*" + INFO)) if self.path.is_dir() else []
        except OSError as failed:
            why = f"the snapshots in {self.path} are left out: {_unreadable(failed)}"
            self._log_once(self.path, SnapshotError(why))
            return []

    def _read_info(self, path: Path) -> SnapshotInfo:
        try:
            found = from_bytes(path.read_bytes())
        except ValueError as wrong:
            raise SnapshotFileDamaged(str(path), str(wrong)) from wrong
        if found.name != path.name.removesuffix(INFO):
            raise SnapshotFileDamaged(str(path), f"it is the info of {found.name}")
        rows = self.rows_file(found)
        try:
            size = rows.stat().st_size
        except FileNotFoundError:
            if path.exists():
                raise SnapshotFileDamaged(str(rows), "its rows are missing") from None
            raise
        if size != found.size_bytes:
            why = f"{size} bytes, {found.size_bytes} were written"
            raise SnapshotFileDamaged(str(rows), why)
        return found

    def _log_once(self, path: Path, damaged: SnapshotError) -> None:
        if (path.name, str(damaged)) not in self._logged:
            self._logged.add((path.name, str(damaged)))
            log.warning("snapshot ignored", error=str(damaged))


def _blocks(path: Path, snapshot_id: str) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                yield block
    except FileNotFoundError:
        raise SnapshotUnknown(snapshot_id) from None
    except OSError as failed:
        raise SnapshotFileDamaged(str(path), _unreadable(failed)) from failed


def _unreadable(failed: OSError) -> str:
    return f"it can't be read ({failed.strerror or failed})"


UNFINISHED = ".unfinished-"
_LOCK = ".lock"
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits for keeping snapshots: number, and age in seconds; the newest always stays."""

    keep_count: int
    max_age_s: float

    def expired(self, newest_first: Sequence[SnapshotInfo], now_us: int) -> list[SnapshotInfo]:
        """The snapshots to remove, oldest first."""
        oldest = now_us - int(self.max_age_s * 1_000_000)
        gone = [
            each
            for index, each in enumerate(newest_first)
            if index and (index >= self.keep_count or each.created_at_us < oldest)
        ]
        return gone[::-1]

    def expired_damaged(
        self, damaged: Sequence[Path], whole: Sequence[SnapshotInfo], now_us: int
    ) -> list[Path]:
        """The infos of damaged snapshots to remove: too old, or older than enough whole ones.

        Files whose names no snapshot has stay.
        """
        oldest_s = now_us / 1_000_000 - self.max_age_s
        return [
            path
            for path in damaged
            if (name := _NAME.fullmatch(path.name)) is not None
            and (
                path.stat().st_mtime < oldest_s
                or sum(each.sequence > int(name[1]) for each in whole) >= self.keep_count
            )
        ]


@dataclass(frozen=True, slots=True)
class TakenSnapshot:
    """The outcome of :func:`take`."""

    #: The newest snapshot.
    snapshot: SnapshotInfo
    #: False if the newest one has the same rows already, so that none was written.
    written: bool
    #: The ids of expired snapshots.
    removed: tuple[str, ...]


def take(
    reader: StoreReader,
    table: str,
    directory: Path,
    retention: Retention,
    *,
    verified_within_s: float | None = None,
) -> TakenSnapshot:
    """Write a snapshot of ``table`` ("schema.name"), and remove expired ones.

    Nothing is written if the newest one has the same rows already. A snapshot appears whole or not
    at all; unfinished files of a killed process are removed. The snapshot appears once a catalog
    check has verified its position, within ``verified_within_s``; None: the source has no catalog
    to check.

    :raises TableUnknown: if the store has no such table.
    :raises TableHidden: if the table isn't consistent yet.
    :raises SnapshotBusy: if another process is writing there.
    :raises SnapshotUnverified: if no check verified its position, or the table was changed.
    :raises SnapshotUnwritable: if the directory can't be written.
    """
    files = SnapshotDirectory(directory)
    try:
        make_private(directory, (_LOCK,))
        with _locked(directory):
            _remove_unfinished(files)
            made, new = _write_rows_if_changed(reader, table, files)
            if new:
                if verified_within_s is not None:
                    _await_verified(reader, made, verified_within_s)
                # The info makes the snapshot complete.
                with _atomic(files.info_file(made)) as file:
                    file.write(made.to_bytes())
            removed = _remove_expired(files, retention)
    except OSError as failed:
        raise SnapshotUnwritable(str(directory), failed.strerror or str(failed)) from failed
    return TakenSnapshot(made, new, removed)


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
    name = file_name(rows.position, rows.sequence)
    with _atomic(files.path / (name + ROWS)) as file:
        for _, lines in rows.batches():
            block = b"\n".join(lines) + b"\n"
            file.write(block)
            digest.update(block)
            checksum.add(lines)
    return SnapshotInfo(
        snapshot_id=snapshot_id(view.name, rows.position, rows.sequence),
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


def _remove_expired(files: SnapshotDirectory, retention: Retention) -> tuple[str, ...]:
    now_us = int(time() * 1_000_000)
    whole, damaged = files.read_all()
    expired = retention.expired(whole, now_us)
    for each in expired:
        files.info_file(each).unlink()
        files.rows_file(each).unlink()
    expired_damaged = retention.expired_damaged(damaged, whole, now_us)
    for path in expired_damaged:
        path.unlink()
        path.with_suffix(ROWS).unlink(missing_ok=True)
        log.info("damaged snapshot removed", path=str(path))
    if expired or expired_damaged:
        files_.sync_directory(files.path)
    return tuple(each.snapshot_id for each in expired)


def _remove_unfinished(files: SnapshotDirectory) -> None:
    """Remove the files of snapshots that were never completed."""
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
    """A file that exists, durably, only after the block has ended without an error."""
    unfinished = path.with_name(UNFINISHED + path.name)
    with (
        open(unfinished, "wb", opener=private) as file,
        files_.replacing(path, unfinished, file),
    ):
        yield file
