"""The errors of serving: each gRPC status that ends a call, and what stops the listener."""

from __future__ import annotations

import grpc

MAX_DETAILS = 2000
"""Characters of a message that may quote the request: gRPC refuses to send long ones."""


class ServingError(Exception):
    """Root of the serving package's errors."""


class CannotListen(ServingError):
    """The address is taken, or the TLS files can't be used."""


class Refused(ServingError):
    """A call ends with this gRPC status; the message is for the client's operator."""

    code: grpc.StatusCode = grpc.StatusCode.INTERNAL
    reason: str = "refused"


class SessionFailed(Refused):
    """The store failed under the session."""

    reason = "error"


class BadRequest(Refused):
    """The request itself is wrong; the message names the field."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class RequestLate(Refused):
    """The request of a call wasn't whole in time, or too many other calls came before it was."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "client"


class NotServed(Refused):
    """This server has no such table or snapshot."""

    code = grpc.StatusCode.NOT_FOUND


class SnapshotBroken(Refused):
    """A periodic snapshot's file isn't what was written."""

    code = grpc.StatusCode.DATA_LOSS
    reason = "error"


class Damaged(Refused):
    """Stored rows or journal records were damaged on disk, and are being repaired."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "error"


class NotReady(Refused):
    """The table exists and its copy isn't done yet."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class Full(Refused):
    """max_clients is reached, or one caller's share of it."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class BufferDropped(Refused):
    """The client fell further behind than client_buffer.max_size allows."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "buffer"


class Stalled(Refused):
    """The client took no message for stall_timeout_s while it was being sent what it missed."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "stalled"


class NoRoomToSpool(Refused):
    """A slow client's snapshot could not be spooled: the disk is nearly full."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "error"


class Behind(Refused):
    """The client's position is ahead of this server's, in the same history."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "behind"


class PositionSuspect(Refused):
    """The client was sent suspect rows that were repaired since, and it keeps old positions."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "behind"


class Draining(Refused):
    """The server is draining: it stops soon and accepts no new streams."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "drain"


class SnapshotsHang(Refused):
    """The directory of a table's periodic snapshots can't be read for now."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "not ready"


class HistoryChanged(Refused):
    """The store began another history under an open session: the client must connect again."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "drain"


class NoToken(Refused):
    """No token, or one that the tokens file doesn't list."""

    code = grpc.StatusCode.UNAUTHENTICATED


class TokenForbids(Refused):
    """The token is known and may not read this table."""

    code = grpc.StatusCode.PERMISSION_DENIED
