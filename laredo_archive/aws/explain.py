"""A failed call, told so that its reader knows what to do: one line, and what kind it is.

Every exception that a client of clients.py raises goes through explain(): what the
service answered (ClientError), and what kept it from answering (BotoCoreError).
"""

from dataclasses import dataclass
from typing import Any

from laredo_archive.aws.advice import Situation, advice_for
from laredo_archive.aws.iam import iam_action
from laredo_archive.aws.kinds import Kind, kind_of


@dataclass(frozen=True)
class Explained:
    """``sent``: whether the request, or a part of it, may have reached the service."""

    kind: Kind
    message: str
    status: int | None
    code: str | None
    sent: bool


@dataclass(frozen=True)
class _Facts:
    kind: Kind
    words: str
    """The service's own, or those of what failed on the way to it."""
    sent: bool
    code: str | None = None
    status: int | None = None
    request_id: str | None = None
    region: str | None = None
    dates: tuple[str | None, str | None] = (None, None)
    endpoint: str | None = None


def failures() -> tuple[type[Exception], ...]:
    """What a client's call can raise: ``except failures() as failure``. Imports botocore."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    return (ClientError, BotoCoreError, ResponseParserError)


def explain(
    failure: Exception, *, service: str, operation: str, credentials: str | None, resource: str
) -> Explained:
    """Tell ``failure``, of one of failures(), apart.

    ``operation`` is the API's (PutObject), ``credentials`` the profile's name, ``resource``
    what it was about: an s3:// URI, an ARN, a queue's URL.
    """
    facts = _facts(failure, service, operation)
    action = iam_action(service, operation)
    who = credentials or "ambient"
    advice = advice_for(
        facts.kind,
        Situation(
            service,
            action,
            who,
            resource,
            facts.code,
            facts.words,
            facts.region,
            facts.dates,
            facts.endpoint,
        ),
    )
    message = f"{action} on {resource} as profile {who}: {_cause(facts)}. What to do: {advice}"
    return Explained(facts.kind, message, facts.status, facts.code, facts.sent)


def _cause(facts: _Facts) -> str:
    told = [_one_line(facts.words).rstrip(".")]
    if facts.code is not None and facts.code != str(facts.status):
        told.insert(0, f"{facts.code}:")
    if facts.status is not None:
        told.append(
            f"(HTTP {facts.status}"
            + (f", request {facts.request_id})" if facts.request_id else ")")
        )
    return " ".join(told)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _facts(failure: Exception, service: str, operation: str) -> _Facts:
    from botocore.exceptions import ClientError

    from laredo_archive.aws.role import RoleRefused

    if isinstance(failure, RoleRefused):
        return _of_role(failure)
    if isinstance(failure, ClientError):
        if failure.operation_name.startswith("AssumeRole") and not operation.startswith(
            "AssumeRole"
        ):
            return _of_role_answer(failure)
        return _of_answer(failure, service, operation)
    return _of_way(failure)


def _of_answer(failure: Any, service: str, operation: str) -> _Facts:
    """A refusal in the service's own words."""
    error = failure.response.get("Error", {})
    metadata = failure.response.get("ResponseMetadata", {})
    headers = {name.lower(): value for name, value in metadata.get("HTTPHeaders", {}).items()}
    status = int(metadata.get("HTTPStatusCode", 0))
    code = str(error.get("Code") or status)
    words = str(error.get("Message") or "no reason given")
    region = error.get("Region") or headers.get("x-amz-bucket-region")
    return _Facts(
        kind_of(service, operation, code=code, status=status, words=words, region=region),
        words,
        True,
        code,
        status,
        metadata.get("RequestId") or error.get("RequestId"),
        region,
        (error.get("ServerTime") or headers.get("date"), error.get("RequestTime")),
    )


def _of_role(failure: Any) -> _Facts:
    """The profile's role wasn't taken on, so nothing else was sent."""
    explained: Explained = failure.explained
    passing = explained.kind in {Kind.THROTTLED, Kind.SERVER, Kind.CONNECT, Kind.LOST}
    kind = Kind.CONNECT if passing else Kind.ROLE
    return _Facts(kind, explained.message, sent=False, endpoint="STS")


def _of_role_answer(failure: Any) -> _Facts:
    """The same, of a role that botocore itself takes on (a web identity, a file's role_arn)."""
    answer = _of_answer(failure, "sts", failure.operation_name)
    return _Facts(
        Kind.ROLE,
        f"sts:{failure.operation_name} was refused: {answer.words}",
        sent=False,
        code=answer.code,
        status=answer.status,
        request_id=answer.request_id,
    )


_TLS_NEVER_SENT = (
    "CERTIFICATE_VERIFY_FAILED",
    "HANDSHAKE_FAILURE",
    "UNKNOWN_CA",
    "WRONG_VERSION_NUMBER",
    "hostname",
)


def _of_way(failure: Exception) -> _Facts:
    """No answer: what happened on the way."""
    from botocore import exceptions

    endpoint = getattr(failure, "kwargs", {}).get("endpoint_url")
    words = str(failure)
    never_connected = (
        exceptions.EndpointConnectionError,
        exceptions.ConnectTimeoutError,
        exceptions.ProxyConnectionError,
    )
    no_credentials = (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.CredentialRetrievalError,
        exceptions.MetadataRetrievalError,
        exceptions.TokenRetrievalError,
        exceptions.NoAuthTokenError,
        exceptions.SSOError,
    )
    if isinstance(failure, never_connected):
        return _Facts(Kind.CONNECT, words, sent=False, endpoint=endpoint)
    if isinstance(failure, exceptions.SSLError) and any(word in words for word in _TLS_NEVER_SENT):
        return _Facts(Kind.CONNECT, words, sent=False, endpoint=endpoint)
    if isinstance(failure, no_credentials):
        return _Facts(Kind.NO_CREDENTIALS, words, sent=False)
    if isinstance(failure, exceptions.FlexibleChecksumError):
        return _Facts(Kind.CHECKSUM, words, sent=True)
    if isinstance(failure, exceptions.ValidationError | exceptions.ParamValidationError):
        return _Facts(Kind.OTHER, words, sent=False)
    return _Facts(Kind.LOST, words, sent=True, endpoint=endpoint)
