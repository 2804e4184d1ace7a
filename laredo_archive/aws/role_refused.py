"""The error of a refused role, as a botocore exception: botocore passes on no other kind.

Imported only when there is boto3.
"""

from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError

if TYPE_CHECKING:
    from laredo_archive.aws.kinds import Explained


class RoleRefused(BotoCoreError):
    """The profile's role wasn't taken on; raised by whatever was to be called as that role."""

    fmt = "{message}"

    def __init__(self, explained: "Explained") -> None:
        super().__init__(message=explained.message)
        self.explained = explained
