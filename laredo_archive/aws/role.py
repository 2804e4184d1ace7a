"""A role that is assumed with a profile; its credentials are renewed before they expire.

Imported only when there is boto3.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog
import tenacity
from botocore.credentials import DeferredRefreshableCredentials

from laredo_archive.aws.clocks import shown
from laredo_archive.aws.explain import explain, failures
from laredo_archive.aws.kinds import PASSING, Cause, Explained
from laredo_archive.aws.profile import Profile
from laredo_archive.aws.role_refused import RoleRefused
from laredo_model.retry import Backoff

if TYPE_CHECKING:
    from types_boto3_sts import STSClient

log = structlog.get_logger(__name__)


ATTEMPTS = 3


class RoleSession:
    """The sessions of one role, one after the other.

    botocore asks for a new one 15 minutes before the old one ends (one caller does it, the
    others go on with the old one) and, if that failed, makes everyone wait for one from 10
    minutes before.
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
        """A service says that the session is over: the next call takes a new one."""
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
        # As long as the old session is valid, botocore reports no failure.
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
        # A base that is a role itself has had its tries.
        return (
            isinstance(failure, failures())
            and not isinstance(failure, RoleRefused)
            and self._explained(failure).kind in PASSING
        )

    def _note(self, state: tenacity.RetryCallState) -> None:
        failure = state.outcome.exception() if state.outcome else None
        log.warning(
            "role is asked for again",
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
            f" ends at {shown(until)}, and this machine's clock says {shown(self._now())}. What to"
            " do: set that clock right (chrony, NTP)"
        )
        return Explained(Cause.CLOCK_SKEW, message, None, None, sent=True)
