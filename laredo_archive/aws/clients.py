"""The clients of AWS's services: one for each profile, service, region and endpoint.

They never repeat a request by themselves, since only the caller knows whether that is safe: a lost
answer to a conditional write has to be settled by reading.
"""

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from laredo_archive.aws.profile import (
    AMBIENT,
    AwsError,
    AwsMissing,
    Profile,
    ProfileError,
    RegionUnknown,
    chain_of,
    check,
    find,
)

if TYPE_CHECKING:
    from botocore.session import Session
    from types_boto3_sts import STSClient

CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 60

Service = Literal["s3", "sns", "sqs", "kinesis", "sts"]
Addressing = Literal["auto", "path", "virtual"]

# Region in which another partition's roles are assumed if none is configured.
_STS_OF_PARTITION = {"aws-cn": "cn-north-1", "aws-us-gov": "us-gov-west-1"}
_SESSION_OVER = {"ExpiredToken", "ExpiredTokenException"}


@dataclass(frozen=True)
class Called:
    """One HTTP request and its outcome; ``status`` is None if no answer came."""

    service: str
    operation: str
    credentials: str
    status: int | None
    seconds: float


@dataclass(frozen=True)
class Identity:
    """The identity of a profile, from STS."""

    account: str
    arn: str


class _Wanted(NamedTuple):
    service: str
    credentials: str
    region: str
    endpoint: str | None
    addressing: Addressing
    connections: int


def ignore(called: Called) -> None:
    """Ignore the event."""


class AwsClients:
    """Makes clients, and keeps them; safe for use by several threads.

    :raises ProfileError: if ``profiles`` contradict themselves.
    """

    def __init__(
        self,
        profiles: Mapping[str, Profile] | None = None,
        on_call: Callable[[Called], None] = ignore,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._profiles = dict(profiles or {})
        check(self._profiles)
        self._on_call = on_call
        self._now = now
        self._lock = threading.RLock()
        self._clients: dict[_Wanted, Any] = {}
        self._sessions: dict[str, Session] = {}
        self._renewing: dict[str, Callable[[], None]] = {}

    def client(
        self,
        service: Service,
        *,
        credentials: str | None = None,
        region: str | None = None,
        endpoint: str | None = None,
        addressing: Addressing = "auto",
        connections: int = 10,
    ) -> Any:
        """The one client for these arguments; sends no request yet.

        ``credentials`` names a profile (None: ambient), ``addressing`` is S3's,
        ``connections`` is the number of requests at the same time.

        :raises AwsMissing: without boto3.
        :raises ProfileError: if there is no such profile, or it can't be used.
        :raises RegionUnknown: if no region is configured.
        :raises AwsError: if region or endpoint is invalid.
        """
        profile = find(credentials or AMBIENT.name, self._profiles)
        with self._lock:
            session = self._session(profile)
            where = region or self._region_of(profile, session, service, endpoint)
            wanted = _Wanted(service, profile.name, where, endpoint, addressing, connections)
            if wanted not in self._clients:
                self._clients[wanted] = self._made(session, wanted)
            return self._clients[wanted]

    def identity(self, credentials: str | None = None) -> Identity:
        """The identity of a profile (sts:GetCallerIdentity, which needs no permission).

        :raises Exception: one of explain.failures().
        """
        chain = chain_of(credentials or AMBIENT.name, self._profiles)
        answer = self._sts(chain[0], chain).get_caller_identity()
        return Identity(answer["Account"], answer["Arn"])

    def close(self) -> None:
        """Close all connections; a client in use opens new ones."""
        with self._lock:
            for client in self._clients.values():
                client.close()

    def _session(self, profile: Profile) -> "Session":
        if profile.name not in self._sessions:
            session = self._new_session(profile)
            if profile.type == "assume_role":
                self._give_role(session, profile)
            elif profile.type == "ambient":
                from laredo_archive.aws.credentials import give_ambient

                self._renewing[profile.name] = give_ambient(session).end
            self._sessions[profile.name] = session
        return self._sessions[profile.name]

    def _new_session(self, profile: Profile) -> "Session":
        try:
            from botocore.exceptions import BotoCoreError
            from botocore.session import Session
        except ImportError as missing:
            raise AwsMissing from missing
        try:
            session = Session(profile=profile.aws_profile)
            session.get_scoped_config()
            session.register_component("data_loader", _descriptions())
        except BotoCoreError as wrong:
            raise ProfileError(profile.name, f"the AWS configuration files: {wrong}") from wrong
        return session

    def _give_role(self, session: "Session", profile: Profile) -> None:
        from laredo_archive.aws.credentials import RoleSession, give

        chain = chain_of(profile.name, self._profiles)
        role = RoleSession(
            profile,
            self._sts(chain[1], chain),
            chain[1].name,
            profile.session_name or _default_session_name(),
            self._now,
        )
        self._renewing[profile.name] = role.end
        give(session, role.credentials)

    def _sts(self, caller: Profile, chain: list[Profile]) -> "STSClient":
        """Client with which ``caller`` asks STS about the first profile of ``chain``."""
        endpoint = next((profile.endpoint for profile in chain if profile.endpoint), None)
        region = next((profile.region for profile in chain if profile.region), None)
        if region is None and chain[0].role_arn is not None and _region_in_environment() is None:
            region = _STS_OF_PARTITION.get(chain[0].role_arn.split(":")[1])
        sts: STSClient = self.client(
            "sts", credentials=caller.name, region=region, endpoint=endpoint
        )
        return sts

    def _region_of(
        self, profile: Profile, session: "Session", service: str, endpoint: str | None
    ) -> str:
        region = profile.region or _region_in_environment() or session.get_config_variable("region")
        if region is not None:
            return str(region)
        if endpoint is not None or service == "sts":
            # With an endpoint a region is needed only to sign with.
            return "us-east-1"
        raise RegionUnknown(service, profile.name)

    def _made(self, session: "Session", wanted: _Wanted) -> Any:
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        _check_authorities(session, wanted.endpoint)
        unsigned = find(wanted.credentials, self._profiles).type == "anonymous"
        s3: Any = {"addressing_style": wanted.addressing}
        config = Config(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            tcp_keepalive=True,
            max_pool_connections=wanted.connections,
            retries={"total_max_attempts": 1, "mode": "standard"},
            s3=s3,
            signature_version=UNSIGNED if unsigned else None,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            user_agent_extra="laredo-snapshotter",
        )
        try:
            client = session.create_client(
                wanted.service,
                region_name=wanted.region,
                endpoint_url=wanted.endpoint,
                config=config,
            )
        except (BotoCoreError, ValueError) as wrong:
            raise AwsError(
                f"no client for {wanted.service} in region {wanted.region!r}"
                f" (endpoint {wanted.endpoint or 'of AWS'}) as profile {wanted.credentials}:"
                f" {wrong}"
            ) from wrong
        self._listen(client, wanted.credentials)
        return client

    def _listen(self, client: Any, credentials: str) -> None:
        begun = threading.local()
        complete = _CompleteAnswers(client)

        def sent(**_: Any) -> None:
            begun.at = time.perf_counter()

        def answered(
            event_name: str, response_dict: Any, parsed_response: Any, **rest: Any
        ) -> None:
            service, operation = event_name.split(".")[1:]
            status = response_dict["status_code"] if response_dict else None
            error = (parsed_response or {}).get("Error", {})
            if error.get("Code") in _SESSION_OVER and credentials in self._renewing:
                self._renewing[credentials]()
            seconds = time.perf_counter() - begun.at
            self._on_call(Called(service, operation, credentials, status, seconds))
            if response_dict:
                complete.check(operation, response_dict)

        events = client.meta.events
        events.register_last("before-send", sent)
        events.register_last("before-parse", _refuse_odd_length)
        events.register_last("response-received", answered)
        events.register_last("before-parameter-build.s3", _no_redirection)


def _refuse_odd_length(response_dict: Mapping[str, Any], **_: Any) -> None:
    """Refuse an answer whose length is no number: some proxies repeat it, as ``7, 7``.

    botocore would raise ValueError, here or where the body is read.

    :raises IncompleteReadError: so that the request is sent again, like that of a cut-off answer.
    """
    from botocore.exceptions import IncompleteReadError

    length = response_dict["headers"].get("Content-Length", "0")
    if length.isdecimal():
        return
    body = response_dict["body"]
    read = len(body) if isinstance(body, bytes) else 0
    if not isinstance(body, bytes):
        body.close()
    raise IncompleteReadError(actual_bytes=read, expected_bytes=length)


class _CompleteAnswers:
    """Checks that answers are complete: botocore accepts a body that was cut off, or is empty.

    A listing that breaks off before its first byte would report that nothing is there.
    """

    def __init__(self, client: Any) -> None:
        self._model = client.meta.service_model
        self._with_body: dict[str, bool] = {}

    def check(self, operation: str, answer: Mapping[str, Any]) -> None:
        """Check an answer, as botocore's events pass it on.

        Streamed bodies are checked as they are read.

        :raises IncompleteReadError: if it was cut off, or is empty and shouldn't be.
        """
        from botocore.exceptions import IncompleteReadError

        body = answer["body"]
        if not isinstance(body, bytes) or operation.startswith("Head"):
            return
        length = answer["headers"].get("Content-Length")
        if length is not None and length != str(len(body)):
            raise IncompleteReadError(actual_bytes=len(body), expected_bytes=int(length))
        if not body and answer["status_code"] < 300 and self._has_body(operation):
            raise IncompleteReadError(actual_bytes=0, expected_bytes=1)

    def _has_body(self, operation: str) -> bool:
        if operation not in self._with_body:
            shape = self._model.operation_model(operation).output_shape
            members = shape.members.values() if shape is not None else ()
            self._with_body[operation] = any(
                "location" not in member.serialization for member in members
            )
        return self._with_body[operation]


@cache
def _descriptions() -> Any:
    """Descriptions of AWS's services: megabytes, read once for all sessions of the process."""
    from botocore.loaders import create_loader

    return create_loader(os.environ.get("AWS_DATA_PATH"))


def _check_authorities(session: "Session", endpoint: str | None) -> None:
    """Check that the file of certificate authorities exists: botocore doesn't name a missing one.

    :raises AwsError: if it doesn't exist.
    """
    bundle = session.get_config_variable("ca_bundle")
    if bundle and not Path(bundle).exists() and not (endpoint or "").startswith("http://"):
        raise AwsError(
            f"{bundle} doesn't exist, and AWS_CA_BUNDLE (or ca_bundle in the AWS configuration"
            " files) names it as the file of certificate authorities. Set it to an existing file,"
            " or unset it"
        )


def _no_redirection(context: dict[str, Any], **_: object) -> None:
    # botocore follows a bucket into its region silently, with two more requests each time. This
    # flag makes it believe that it has done so, so the refusal, which names the region, comes out.
    context["s3_redirect"] = {**context.get("s3_redirect", {}), "redirected": True}


def _region_in_environment() -> str | None:
    # boto3 knows AWS_DEFAULT_REGION only, AWS's other SDKs AWS_REGION.
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


def _default_session_name() -> str:
    host = re.sub(r"[^A-Za-z0-9+=,.@-]", "-", socket.gethostname())
    return f"laredo-{host}"[:64]
