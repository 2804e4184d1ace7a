"""What can go wrong in the writer, apart from what its archive and its stream raise.

SnapshotterError
├── ConfigRefused        the configuration asks for what can't be
├── StreamInconsistent   a change doesn't fit the change before it
├── ChecksumsDiffer      a new base isn't the state that the diffs lead to
├── KeyFieldsDiffer      the configured key isn't the table's
├── SnapshotNotReady     a snapshot was asked of a table that can't make one
└── StreamBehind         the server's snapshot is older than what was already taken
"""

from laredo_model import position as position_
from laredo_model.checksum import StateChecksum


class SnapshotterError(Exception):
    """Root of the writer's own errors; the message says what to do."""


class ConfigRefused(SnapshotterError):
    """The configuration is well-formed but can't be run as it is."""


class StreamInconsistent(SnapshotterError):
    """A change's old row isn't the row that the change before it left."""

    def __init__(self, key: bytes, position: int | None) -> None:
        at = "an unknown position" if position is None else position_.text(position)
        super().__init__(
            f"key {key.decode(errors='replace')!r} at {at}: the old row of this change isn't the "
            "row that the change before it left, so a change was lost or repeated on the way; "
            "the buffer is thrown away and the stream resumed from the archive's head"
        )


class ChecksumsDiffer(SnapshotterError):
    """The base's rows and the running state of base plus diffs differ at one position."""

    def __init__(
        self, table: str, position: int, running: StateChecksum, base: StateChecksum
    ) -> None:
        self.running = running
        self.base = base
        super().__init__(
            f"{table} at {position_.text(position)}: base plus diffs come to {running.rows} rows "
            f"with checksum {running.hex()}, the server's snapshot to {base.rows} rows with "
            f"{base.hex()}; nothing was committed. Run `laredo-archive verify --against DSN` to "
            "see which is right; POST /snapshot tries again"
        )


class KeyFieldsDiffer(SnapshotterError):
    """key_fields in the configuration isn't the table's key."""

    def __init__(self, table: str, configured: list[str], actual: list[str]) -> None:
        super().__init__(
            f"{table}: key_fields = {configured} but the table's key is {actual}; "
            "make them equal or leave key_fields out"
        )


class SnapshotNotReady(SnapshotterError):
    """POST /snapshot for a table that can't make one now; the message says why."""


class StreamBehind(SnapshotterError):
    """The server's snapshot is older than what the archive or the live stream already has."""

    def __init__(self, table: str, snapshot: int, needed: int) -> None:
        super().__init__(
            f"{table}: the server's snapshot is at {position_.text(snapshot)}, before "
            f"{position_.text(needed)} which was already taken; tried again later"
        )
