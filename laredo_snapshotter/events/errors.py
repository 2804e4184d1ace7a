"""What can go wrong between a notice and its sink."""

from laredo_snapshotter.errors import SnapshotterError


class SinkError(SnapshotterError):
    """The sink ``name`` wasn't told, or may have been: it is told again."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class SinkRefused(SinkError):
    """The service doesn't want the notice as it is, or the sink isn't set up."""
