"""Errors of repairing an archive.

ArchiveError
├── RepairRefused             an archive isn't repaired from there
└── ArtifactLost              no destination that was asked has the artifact whole
"""

from collections.abc import Sequence

from laredo_archive.errors import ArchiveError


class RepairRefused(ArchiveError):
    """The archive at ``where`` can't be repaired, or can't be repaired from."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}. Nothing was written")
        self.where = where


class ArtifactLost(ArchiveError):
    """An artifact is missing or damaged, and none of the other destinations has it whole."""

    def __init__(self, artifact: str, reason: str, others: Sequence[str]) -> None:
        elsewhere = "; ".join(others) or "no other destination of this archive is known here"
        super().__init__(
            f"{artifact} is lost: {reason.rstrip('.')}; {elsewhere.rstrip('.')}. Restore the object"
            " from a backup, or from an older version of it if the bucket keeps them. Without it"
            " its epoch can't be read beyond that position; have a new base written (POST /snapshot"
            " on the writer): the epoch that it begins is whole"
        )
        self.artifact = artifact
