"""Connect's error codes: their names, their HTTP statuses, and the JSON of an error."""

from __future__ import annotations

from typing import Any

import grpc
import orjson

from laredo_fanout.serving.errors import MAX_DETAILS, Refused

_STATUSES = {
    "canceled": 499,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "aborted": 409,
    "out_of_range": 400,
    "unimplemented": 501,
    "unavailable": 503,
    "unauthenticated": 401,
}
_ANY_OTHER = 500


class DeadlinePassed(Refused):
    """The call took longer than its Connect-Timeout-Ms."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "client"


class Unsupported(Refused):
    """The request uses something of the protocol that this server doesn't have."""

    code = grpc.StatusCode.UNIMPLEMENTED


def name(refused: Refused) -> str:
    """The code's name in JSON; Connect spells ``canceled`` with one l."""
    return "canceled" if refused.code is grpc.StatusCode.CANCELLED else refused.code.name.lower()


def http_status(refused: Refused) -> int:
    """The HTTP status of a unary call that ends with this."""
    return _STATUSES.get(name(refused), _ANY_OTHER)


def error_json(refused: Refused) -> dict[str, Any]:
    """The error as Connect's JSON object."""
    return {"code": name(refused), "message": str(refused)[:MAX_DETAILS]}


def unary_error(refused: Refused) -> bytes:
    """The body of a unary call that ends with this."""
    return orjson.dumps(error_json(refused))
