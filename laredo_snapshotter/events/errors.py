"""The errors of notifying a sink."""

from laredo_snapshotter.errors import SnapshotterError


class SinkError(SnapshotterError):
    """The sink ``name`` wasn't notified, or may not have been: it is notified again."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class SinkRefused(SinkError):
    """The service refuses the notice as it is, or the sink isn't set up."""
