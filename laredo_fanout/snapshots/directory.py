"""The directory that holds one table's periodic snapshots.

Each snapshot is two files: NAME.jsonl, a row's line per line in key order, and
NAME.json, its info, which is written last and removed first: without it the
rows are no snapshot.
"""

from collections.abc import Generator
from pathlib import Path

import structlog

from laredo_fanout.snapshots import info as info_
from laredo_fanout.snapshots.errors import SnapshotFileDamaged, SnapshotUnknown
from laredo_fanout.snapshots.info import SnapshotInfo
from laredo_service.files import Digest

ROWS = ".jsonl"
INFO = ".json"

_BLOCK = 1 << 20

log = structlog.get_logger("laredo_fanout.snapshots")


class SnapshotDirectory:
    """Lists and reads one table's snapshots; any number of processes may do so at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._logged: set[tuple[str, str]] = set()

    def snapshots(self, limit: int | None = None) -> list[SnapshotInfo]:
        """The snapshots that are whole, newest first; damaged ones are logged once and left out."""
        found = []
        for path in self._info_files():
            try:
                found.append(self._read_info(path))
            except SnapshotFileDamaged as damaged:
                self._log_once(path, damaged)
            except FileNotFoundError:
                continue  # removed meanwhile
        found.sort(key=lambda each: (each.sequence, each.created_at_us), reverse=True)
        return found[:limit] if limit else found

    def newest(self) -> SnapshotInfo | None:
        """The newest whole snapshot."""
        return next(iter(self.snapshots(1)), None)

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
        try:
            file = path.open("rb")
        except FileNotFoundError:
            raise SnapshotUnknown(snapshot.snapshot_id) from None
        with file:
            while block := file.read(_BLOCK):
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
            raise SnapshotFileDamaged(str(path), "its sha256 isn't the one that was written")

    def rows_file(self, snapshot: SnapshotInfo) -> Path:
        """The file of its rows."""
        return self.path / (snapshot.name + ROWS)

    def info_file(self, snapshot: SnapshotInfo) -> Path:
        """The file of its info."""
        return self.path / (snapshot.name + INFO)

    def _info_files(self) -> list[Path]:
        return sorted(self.path.glob("[!.]*" + INFO)) if self.path.is_dir() else []

    def _read_info(self, path: Path) -> SnapshotInfo:
        try:
            found = info_.from_bytes(path.read_bytes())
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

    def _log_once(self, path: Path, damaged: SnapshotFileDamaged) -> None:
        if (path.name, str(damaged)) not in self._logged:
            self._logged.add((path.name, str(damaged)))
            log.warning("snapshot ignored", error=str(damaged))
