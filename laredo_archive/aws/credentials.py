"""The credentials that requests are signed with: ambient ones, and the sessions of roles.

boto3 itself searches for ambient credentials once, when a client is made: if the metadata service
doesn't answer at that moment, the client never signs. Ours are found at the first call, and again
when their session ends. A role's session is renewed before it ends.
"""

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import tenacity
from botocore.credentials import (
    CredentialProvider,
    CredentialResolver,
    Credentials,
    DeferredRefreshableCredentials,
    ReadOnlyCredentials,
)
from botocore.exceptions import BotoCoreError, CredentialRetrievalError

from laredo_archive.aws.explain import PASSING, Cause, Explained, explain, failures, shown
from laredo_archive.aws.profile import Profile
from laredo_service.log import Log
from laredo_service.retry import Backoff

if TYPE_CHECKING:
    from botocore.session import Session
    from types_boto3_sts import STSClient

log = Log(__name__)

ATTEMPTS = 3


class RoleRefused(BotoCoreError):
    """The profile's role wasn't assumed. botocore passes only its own exceptions on."""

    fmt = "{message}"

    def __init__(self, explained: Explained) -> None:
        super().__init__(message=explained.message)
        self.explained = explained


def _one_line(record: logging.LogRecord) -> bool:
    """Remove the traceback from botocore's log of a failed renewal, which is raised too."""
    record.exc_info = None
    return True


logging.getLogger("botocore.credentials").addFilter(_one_line)


def _words(failure: Exception) -> str:
    if isinstance(failure, OSError) and failure.filename:
        return f"{failure.filename}: {failure.strerror}"
    return f"{failure} ({type(failure).__name__})"


class AmbientCredentials(Credentials):
    """Credentials that boto3's chain finds: variables, files, a container's or an instance's role.

    An instance's or container's renew themselves. Those in files may be replaced while this
    program runs: they are read again once the service reports that they have expired.
    """

    def __init__(self, find: Callable[[], Credentials | None]) -> None:
        self.method = "ambient"
        self._find = find
        self._lock = threading.Lock()
        self._found: Credentials | None = None

    def end(self) -> None:
        """End the session, which a service reports as expired; the next call searches again."""
        self._found = None

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """Credentials to sign with now; None if there are none, which botocore then reports.

        :raises botocore.exceptions.BotoCoreError: if they can't be used.
        """
        try:
            found = self._found
            if found is None:
                with self._lock:
                    found = self._found = self._found or self._find()
            return found.get_frozen_credentials() if found else None  # type: ignore[return-value]
        except failures():
            raise
        except Exception as failure:  # botocore passes on any exception of files and programs
            raise CredentialRetrievalError(
                provider="a file or program", error_msg=_words(failure)
            ) from failure


class Given(CredentialProvider):
    """Gives a botocore session these credentials, and no others."""

    METHOD = "given"

    def __init__(self, credentials: Credentials) -> None:
        super().__init__()
        self._credentials = credentials

    def load(self) -> Credentials:
        """The credentials, which search for themselves when they are used."""
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


class RoleSession:
    """The sessions of one role, one after the other.

    botocore requests a new one 15 minutes before the old one ends: one caller does, the others
    use the old one. If that failed, from 10 minutes before the end all callers wait for a new one.
    """

    def __init__(
        self,
        profile: Profile,
        sts: "STSClient",
        base: str,
        session_name: str,
        now: Callable[[], datetime],
    ) -> None:
        self._profile = profile
        self._sts = sts
        self._base = base
        self._session_name = session_name
        self._now = now
        self._over = False
        self.credentials = DeferredRefreshableCredentials(
            self._assume, "assume-role", time_fetcher=self._time
        )

    def end(self) -> None:
        """End the session, which a service reports as expired; the next call gets a new one."""
        self._over = True

    def _time(self) -> datetime:
        return datetime.max.replace(tzinfo=UTC) if self._over else self._now()

    def _assume(self) -> dict[str, str]:
        try:
            session = self._answer()["Credentials"]
        except failures() as failure:
            raise self._refused(self._explained(failure)) from failure
        self._over = False
        until = session["Expiration"]
        if until <= self._now():
            raise self._refused(self._stale(until))
        log.info(
            "role assumed",
            profile=self._profile.name,
            role=self._profile.role_arn,
            until=shown(until),
        )
        return {
            "access_key": session["AccessKeyId"],
            "secret_key": session["SecretAccessKey"],
            "token": session["SessionToken"],
            "expiry_time": until.isoformat(),
        }

    def _refused(self, explained: Explained) -> RoleRefused:
        # botocore reports no failure while the old session is valid.
        log.warning("role not assumed", profile=self._profile.name, failure=explained.message)
        return RoleRefused(explained)

    def _answer(self) -> Any:
        wanted = {"RoleArn": self._profile.role_arn, "RoleSessionName": self._session_name}
        if self._profile.external_id is not None:
            wanted["ExternalId"] = self._profile.external_id
        for attempt in tenacity.Retrying(
            retry=tenacity.retry_if_exception(self._passing),
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=Backoff(initial=0.2, maximum=2.0),
            before_sleep=self._note,
            reraise=True,
        ):
            with attempt:
                return self._sts.assume_role(**wanted)  # type: ignore[arg-type]
        raise AssertionError("the last attempt returns or raises")

    def _passing(self, failure: BaseException) -> bool:
        # A base that is a role itself was retried already.
        return (
            isinstance(failure, failures())
            and not isinstance(failure, RoleRefused)
            and self._explained(failure).kind in PASSING
        )

    def _note(self, state: tenacity.RetryCallState) -> None:
        failure = state.outcome.exception() if state.outcome else None
        log.warning(
            "role requested again",
            profile=self._profile.name,
            attempt=state.attempt_number,
            failure=str(failure),
        )

    def _explained(self, failure: Exception) -> Explained:
        return explain(
            failure,
            service="sts",
            operation="AssumeRole",
            credentials=self._base,
            resource=f"{self._profile.role_arn} (credentials.{self._profile.name})",
        )

    def _stale(self, until: datetime) -> Explained:
        message = (
            f"sts:AssumeRole on {self._profile.role_arn} as profile {self._base}: the new session"
            f" ends at {shown(until)}, and this machine's clock shows {shown(self._now())}. What to"
            " do: set that clock right (chrony, NTP)"
        )
        return Explained(Cause.CLOCK_SKEW, message, None, None, sent=True)
