"""A failed call as a commit, a log line and a person need it."""

from dataclasses import dataclass

from laredo_archive.aws.kinds import Cause


@dataclass(frozen=True)
class Explained:
    """``sent``: whether the request, or a part of it, may have reached the service."""

    kind: Cause
    message: str
    status: int | None
    code: str | None
    sent: bool
