"""The ambient credentials, found at the first call, and again when their session ends.

Imported only when there is boto3, which itself checks once, as a client is made:
where the metadata service doesn't answer in that moment, that client never signs.
"""

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog
from botocore.credentials import (
    CredentialProvider,
    CredentialResolver,
    Credentials,
    ReadOnlyCredentials,
)
from botocore.exceptions import CredentialRetrievalError

from laredo_archive.aws.advice import UNUSABLE
from laredo_archive.aws.explain import failures

if TYPE_CHECKING:
    from botocore.session import Session

log = structlog.get_logger(__name__)


def _one_line(record: logging.LogRecord) -> bool:
    """Take the traceback off what botocore logs of a renewal that failed: it is raised, too."""
    record.exc_info = None
    return True


logging.getLogger("botocore.credentials").addFilter(_one_line)


def _words(failure: Exception) -> str:
    if isinstance(failure, OSError) and failure.filename:
        return f"{failure.filename}: {failure.strerror}"
    return f"{failure} ({type(failure).__name__})"


class AmbientCredentials(Credentials):
    """What boto3's chain finds: variables, files, a container's or an instance's role.

    An instance's or container's renew themselves. Others can be replaced where they were
    found while this program runs (files, that is): they are read again once the service
    says that they are over.
    """

    def __init__(self, find: Callable[[], Credentials | None]) -> None:
        self.method = "ambient"
        self._find = find
        self._lock = threading.Lock()
        self._found: Credentials | None = None

    def end(self) -> None:
        """A service says that the session has expired: the next call finds credentials again."""
        self._found = None

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """What to sign with now; None if there is nothing, which botocore then says.

        :raises botocore.exceptions.BotoCoreError: if what there is can't be used.
        """
        try:
            found = self._found
            if found is None:
                with self._lock:
                    found = self._found = self._found or self._find()
            return found.get_frozen_credentials() if found else None  # type: ignore[return-value]
        except failures():
            raise
        except Exception as failure:  # botocore lets out whatever files and programs raise
            raise CredentialRetrievalError(
                provider=UNUSABLE, error_msg=_words(failure)
            ) from failure


class Given(CredentialProvider):
    """Gives a botocore session these credentials, and no others."""

    METHOD = "given"

    def __init__(self, credentials: Credentials) -> None:
        super().__init__()
        self._credentials = credentials

    def load(self) -> Credentials:
        """They are asked for before they are used; searching them is their own matter."""
        return self._credentials


def give(session: "Session", credentials: Credentials) -> None:
    """Let ``session`` sign with ``credentials`` only."""
    session.register_component("credential_provider", CredentialResolver([Given(credentials)]))


def give_ambient(session: "Session") -> AmbientCredentials:
    """Let ``session`` sign with what it finds, once it needs to."""
    resolver = session.get_component("credential_provider")
    credentials = AmbientCredentials(resolver.load_credentials)
    give(session, credentials)
    return credentials
