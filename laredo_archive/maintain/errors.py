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


_OF_THE_CHAIN = (
    "its epoch can't be read beyond that position; have a new base written (POST /snapshot on the"
    " writer): the epoch that it begins is whole"
)
_OF_A_PART = (
    "only boundaries inside the merged diff that it is a part of can't be read; nothing else needs"
    " it"
)


class ArtifactLost(ArchiveError):
    """An artifact is missing or damaged, and none of the other destinations has it whole."""

    def __init__(
        self, artifact: str, reason: str, others: Sequence[str], *, is_part: bool = False
    ) -> None:
        """``is_part``: of a merged diff, which leads past it."""
        elsewhere = "; ".join(others) or "no other destination of this archive is known here"
        super().__init__(
            f"{artifact} is lost: {reason.rstrip('.')}; {elsewhere.rstrip('.')}. Restore the object"
            " from a backup, or from an older version of it if the bucket keeps them. Without it"
            f" {_OF_A_PART if is_part else _OF_THE_CHAIN}"
        )
        self.artifact = artifact
