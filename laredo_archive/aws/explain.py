"""Explains a failed call to AWS: its kind, and one line that says what to do.

Every exception that a client of clients.py raises goes through explain(): what the
service answered (ClientError), and what kept it from answering (BotoCoreError).
"""

import re
from dataclasses import dataclass, replace
from typing import Any

from laredo_archive.aws.advice import Situation, advice_for
from laredo_archive.aws.clocks import UNKNOWN, Clocks
from laredo_archive.aws.iam import iam_action
from laredo_archive.aws.kinds import PASSING, Cause, Explained, kind_of

_EXPECTED_REGION = re.compile(r"expecting '([a-z0-9-]+)'")


@dataclass(frozen=True)
class _Facts:
    kind: Cause
    words: str
    """The service's own, or those of what failed on the way to it."""
    sent: bool
    code: str | None = None
    status: int | None = None
    request_id: str | None = None
    region: str | None = None
    clocks: Clocks = UNKNOWN
    endpoint: str | None = None
    advised: bool = False
    """The words say already what to do."""


def failures() -> tuple[type[Exception], ...]:
    """What a client's call can raise: ``except failures() as failure``. Imports botocore.

    Of an answer that breaks off some versions of botocore let out what urllib3 says.
    """
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    return (ClientError, BotoCoreError, ResponseParserError, HTTPError)


def explain(
    failure: Exception, *, service: str, operation: str, credentials: str | None, resource: str
) -> Explained:
    """Classify ``failure``, one of failures(), and explain it.

    ``operation`` is the API's (PutObject), ``credentials`` the profile's name, ``resource``
    what it was about: an s3:// URI, an ARN, a queue's URL.
    """
    facts = _facts(failure, service, operation)
    action = iam_action(service, operation)
    who = credentials or "ambient"
    message = f"{action} on {resource} as profile {who}: {_cause(facts)}"
    if not facts.advised:
        message += ". What to do: " + advice_for(
            facts.kind,
            Situation(
                service,
                action,
                who,
                facts.code,
                facts.words,
                facts.region,
                facts.clocks,
                facts.endpoint,
            ),
        )
    return Explained(facts.kind, message, facts.status, facts.code, facts.sent)


def _cause(facts: _Facts) -> str:
    cause = " ".join(facts.words.split()).rstrip(".")
    if facts.code is not None and facts.code != str(facts.status):
        cause = f"{facts.code}: {cause}"
    if facts.status is not None:
        request = f", request {facts.request_id}" if facts.request_id else ""
        cause += f" (HTTP {facts.status}{request})"
    return cause


def _facts(failure: Exception, service: str, operation: str) -> _Facts:
    from botocore.exceptions import ClientError

    from laredo_archive.aws.role_refused import RoleRefused

    if isinstance(failure, RoleRefused):
        return _of_role(failure)
    if not isinstance(failure, ClientError):
        return _of_way(failure)
    if failure.operation_name.startswith("AssumeRole") and operation != failure.operation_name:
        return _of_role_answer(failure)
    return _of_answer(failure, service, operation)


def _of_answer(failure: Any, service: str, operation: str) -> _Facts:
    """A refusal in the service's own words."""
    error = failure.response.get("Error", {})
    metadata = failure.response.get("ResponseMetadata", {})
    headers = {name.lower(): value for name, value in metadata.get("HTTPHeaders", {}).items()}
    status = int(metadata.get("HTTPStatusCode", 0))
    code = str(error.get("Code") or status)
    words = str(error.get("Message") or "no reason given")
    expected = _EXPECTED_REGION.search(words)
    region = (
        error.get("Region")
        or headers.get("x-amz-bucket-region")
        or (expected.group(1) if expected else None)
    )
    return _Facts(
        kind_of(service, operation, code=code, status=status, words=words, region=region),
        words,
        True,
        code,
        status,
        _request_id(metadata.get("RequestId"), headers),
        region,
        Clocks.read(error, headers.get("date"), words),
    )


def _request_id(parsed: str | None, headers: dict[str, str]) -> str | None:
    # botocore leaves it out where a body isn't of the expected form.
    return parsed or headers.get("x-amz-request-id") or headers.get("x-amzn-requestid")


def _of_role(failure: Any) -> _Facts:
    """The profile's role wasn't taken on, so nothing else was sent."""
    explained: Explained = failure.explained
    kind = Cause.CONNECT if explained.kind in PASSING else Cause.ROLE
    return _Facts(kind, f"its role wasn't assumed: {explained.message}", sent=False, advised=True)


def _of_role_answer(failure: Any) -> _Facts:
    """The same, of a role that botocore itself takes on (a web identity, a file's role_arn)."""
    answer = _of_answer(failure, "sts", failure.operation_name)
    words = f"sts:{failure.operation_name} was refused: {answer.words}"
    kind = Cause.CONNECT if answer.kind in PASSING else Cause.ROLE
    return replace(answer, kind=kind, words=words, sent=False)


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
        exceptions.InvalidConfigError,
        exceptions.UnknownCredentialError,
        exceptions.InfiniteLoopConfigError,
        exceptions.ProfileNotFound,
        exceptions.ConfigNotFound,
    )
    if isinstance(failure, never_connected):
        return _Facts(Cause.CONNECT, words, sent=False, endpoint=endpoint)
    if isinstance(failure, exceptions.SSLError) and any(word in words for word in _TLS_NEVER_SENT):
        return _Facts(Cause.CONNECT, words, sent=False, endpoint=endpoint)
    if isinstance(failure, no_credentials):
        return _Facts(Cause.NO_CREDENTIALS, words, sent=False)
    if isinstance(failure, exceptions.FlexibleChecksumError):
        return _Facts(Cause.CHECKSUM, words, sent=True)
    if isinstance(failure, exceptions.ValidationError | exceptions.ParamValidationError):
        return _Facts(Cause.OTHER, words, sent=False)
    return _Facts(Cause.LOST, words, sent=True, endpoint=endpoint)
