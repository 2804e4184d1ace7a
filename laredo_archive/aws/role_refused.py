"""That a role wasn't taken on, as botocore hands it to whoever called: it raises its own kind only.

Imported only when there is boto3.
"""

from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError

if TYPE_CHECKING:
    from laredo_archive.aws.explained import Explained


class RoleRefused(BotoCoreError):
    """The profile's role wasn't taken on; raised by whatever was to be called as that role."""

    fmt = "{message}"

    def __init__(self, explained: "Explained") -> None:
        super().__init__(message=explained.message)
        self.explained = explained
