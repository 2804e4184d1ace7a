"""What can go wrong between a notice and its sink.

SinkError
├── SinkThrottled     the service takes no more for the moment
├── SinkDenied        this profile may not do that, or isn't who it says
├── SinkGone          there is no such topic, queue or stream
├── SinkUnreachable   no answer, or one that says nothing about the notice
└── SinkRefused       the service doesn't want the notice, or isn't set up
"""

from laredo_snapshotter.errors import SnapshotterError


class SinkError(SnapshotterError):
    """The sink ``name`` wasn't told, or may have been: it is told again."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class SinkThrottled(SinkError):
    """The service takes no more for the moment."""


class SinkDenied(SinkError):
    """This profile may not do that, or isn't who it says."""


class SinkGone(SinkError):
    """There is no such topic, queue or stream."""


class SinkUnreachable(SinkError):
    """No answer, or one that says nothing about the notice."""


class SinkRefused(SinkError):
    """The service doesn't want the notice as it is, or the sink isn't set up."""
