"""The writer's own errors; its archive and its stream have theirs.

SnapshotterError
├── ConfigRefused        the configuration is well-formed, and can't be run
├── StreamInconsistent   a change doesn't fit the change before it
├── KeyFieldsDiffer      the configured key isn't the table's
├── SnapshotNotReady     a snapshot was asked of a table that can't make one
├── ServerUnfit          the server doesn't send what an archive needs
├── RebaseAbandoned      a re-base can't go on; it is tried again
├── SnapshotDamaged      a snapshot's rows aren't those that the server reports to have sent
├── PortTaken            the HTTP port can't be listened on
├── ReloadImpossible     a changed configuration can't be taken up; everything is as it was
├── NeverVerified        a table was changed before an artifact's end was verified
├── StreamBehind         the server's snapshot is older than what was already taken
└── SinkError            a sink wasn't notified of an artifact
    └── SinkRefused      it refuses the notice, or isn't set up
"""

from laredo_model import position as position_
from laredo_model.checksum import StateChecksum
from laredo_service.settings import Path, path_text


class SnapshotterError(Exception):
    """Root of the writer's own errors; the message has the cure."""


class ConfigRefused(SnapshotterError):
    """The configuration is well-formed but can't be run as it is."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path_text(path)}: {reason}")
        self.path, self.reason = path, reason


class StreamInconsistent(SnapshotterError):
    """A change's old row isn't the row that the change before it left."""

    def __init__(self, key: bytes, position: int | None) -> None:
        at = "an unknown position" if position is None else position_.text(position)
        super().__init__(
            f"key {key.decode(errors='replace')!r} at {at}: the old row of this change isn't the "
            "row that the change before it left, so a change was lost or repeated on the way; "
            "the buffer is discarded and the stream resumed from the archive's head"
        )


class KeyFieldsDiffer(SnapshotterError):
    """key_fields in the configuration isn't the table's key."""

    def __init__(self, table: str, configured: list[str], actual: list[str]) -> None:
        super().__init__(
            f"{table}: key_fields = {configured} but the table's key is {actual}; "
            "make them equal or leave key_fields out"
        )


class SnapshotNotReady(SnapshotterError):
    """POST /snapshot for a table that can't make one now; the message has the reason."""


class ReloadImpossible(SnapshotterError):
    """POST /reload with a configuration that is wrong; nothing has changed."""


class RebaseAbandoned(SnapshotterError):
    """A re-base can't go on; nothing was committed, and it is tried again."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(f"{table}: re-base given up: {reason}; tried again later")


class ServerUnfit(SnapshotterError):
    """The server speaks the base contract only: no positions, histories or old rows."""

    def __init__(self, table: str, server: str) -> None:
        super().__init__(
            f"{table}: {server} doesn't send positions and histories with its changes; an archive "
            "needs a laredo-fanout that knows the capability batch/json.v1"
        )


class SnapshotDamaged(SnapshotterError):
    """The rows that arrived aren't those that the server reports to have sent."""

    def __init__(self, table: str, sent: StateChecksum, received: StateChecksum) -> None:
        super().__init__(
            f"{table}: the server's snapshot has {sent.rows} rows with checksum {sent.hex()},"
            f" the received rows are {received.rows} with {received.hex()}; nothing was"
            " committed"
        )


class PortTaken(SnapshotterError):
    """The HTTP port can't be listened on."""

    def __init__(self, host: str, port: int, refused: OSError) -> None:
        super().__init__(
            f"snapshotter.http: can't listen on {host}:{port}: {refused.strerror}; "
            "set http.host and http.port to an address that is free"
        )


class NeverVerified(SnapshotterError):
    """An artifact's rows may be older than silent DDL that rewrote values."""

    def __init__(self, table: str, position: int) -> None:
        super().__init__(
            f"{table}: silent DDL may have changed rows before {position_.text(position)}, as no"
            " catalog check had reached that position; the artifact that ends there was discarded"
        )


class StreamBehind(SnapshotterError):
    """The server's snapshot is older than what the archive or the live stream already has."""

    def __init__(self, table: str, snapshot: int, needed: int) -> None:
        super().__init__(
            f"{table}: the server's snapshot is at {position_.text(snapshot)}, before "
            f"{position_.text(needed)} which was already taken; tried again later"
        )


class SinkError(SnapshotterError):
    """The sink ``name`` wasn't notified, or may not have been: it is notified again."""

    def __init__(self, name: str, message: str, cause: str = "") -> None:
        super().__init__(message)
        self.name = name
        self.cause = cause
        """Kind of the service's answer, for telling one outage from the next."""


class SinkRefused(SinkError):
    """The service refuses the notice as it is, or the sink isn't set up."""
