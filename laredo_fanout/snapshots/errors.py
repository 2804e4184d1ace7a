"""Errors of periodic snapshots.

SnapshotError
├── SnapshotUnknown      no snapshot with this id
├── SnapshotFileDamaged  the file isn't what was written
├── SnapshotBusy         another process is writing into the directory
├── SnapshotUnwritable   the directory or disk doesn't take it
└── SnapshotUnverified   silent DDL may have rewritten values before its position
"""

from laredo_model import position as position_


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
    """The directory or its disk doesn't take the snapshot; the ones before are untouched."""

    def __init__(self, directory: str, why: str) -> None:
        super().__init__(f"can't write a snapshot into {directory}: {why}")


class SnapshotUnverified(SnapshotError):
    """Its rows may miss a silent DDL: no catalog check has verified its position."""

    def __init__(self, table: str, position: int, why: str) -> None:
        super().__init__(
            f"the snapshot of table {table} at {position_.text(position)} was given up: no catalog "
            f"check has verified that position ({why}); it is tried again"
        )
