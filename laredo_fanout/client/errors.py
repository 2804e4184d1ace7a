"""Errors of the client library.

ClientError                                  itself: a listener would wait for the stream, which
│                                            waits for it
├── BadEndpoint, BadTableName, BadField      the caller's own mistake, before anything is sent
├── NotReadyInTime                           await_ready's timeout passed
├── ClientStopped                            the client was stopped, or never started
├── NotUnique                                two rows have the same values in a unique index
├── LocalSnapshotUnusable                    the file isn't one of this table, or is damaged
├── GaveUp                                   as many attempts failed as were allowed
└── StreamError                              an error of the server or of the network
    ├── InvalidRequest, TableNotFound, Unauthenticated, PermissionDenied, NotAReplicationServer
    └── (worth another attempt)
        ServerUnavailable, TableNotReady, Crowded, SnapshotOffered, ProtocolViolation,
        StreamBroken
"""

import grpc


class ClientError(Exception):
    """Root of the client library's errors."""


class BadEndpoint(ClientError):
    """A server address, certificate or token that can't be used."""


class BadTableName(ClientError):
    """Not a table's name (schema.table), or that of a table that the client follows already."""

    def __init__(self, table: str, why: str | None = None) -> None:
        problem = f"{table}: {why}" if why else None
        super().__init__(problem or f"{table!r} is not a table's name; expected schema.table")


class BadField(ClientError):
    """A look-up, index or filter that doesn't fit the table's columns."""


class NotReadyInTime(ClientError):
    """The table's rows weren't complete within await_ready's timeout."""

    def __init__(self, table: str, server: str, timeout: float, last: BaseException | None) -> None:
        because = f"; the last attempt: {last}" if last is not None else ""
        super().__init__(f"{table} from {server} wasn't ready within {timeout:g} s{because}")
        self.last = last


class ClientStopped(ClientError):
    """The client was stopped, or never started."""


class NotUnique(ClientError):
    """Two rows have the same values in an index that is unique by ``error``."""

    def __init__(self, table: str, index: str, one: bytes, other: bytes) -> None:
        first, second = one.decode(errors="replace"), other.decode(errors="replace")
        super().__init__(
            f"{table}: {index} is unique, and the rows with the keys {first} and {second} have the"
            " same values in it; change one of them and start the client again, or make the index"
            ' unique="last"'
        )
        self.index = index
        self.keys = (one, other)


class LocalSnapshotUnusable(ClientError):
    """The local snapshot file can't be used; the client starts without it."""


class GaveUp(ClientError):
    """Every allowed attempt failed; the cause is the last one's error."""

    def __init__(self, server: str, attempts: int, last: BaseException) -> None:
        super().__init__(f"gave up on {server} after {attempts} attempts: {last}")


class StreamError(ClientError):
    """A stream ended, or never began. ``retryable``: whether another attempt may succeed as is."""

    retryable = False

    def __init__(self, server: str, details: str) -> None:
        super().__init__(f"{server}: {details}")
        self.server = server
        self.details = details


class InvalidRequest(StreamError):
    """The request itself is wrong (INVALID_ARGUMENT)."""


class TableNotFound(StreamError):
    """The server has no such table (NOT_FOUND): it isn't in its configuration."""


class Unauthenticated(StreamError):
    """The server wants a token, or doesn't know this one (UNAUTHENTICATED)."""


class PermissionDenied(StreamError):
    """The token may not read this table (PERMISSION_DENIED)."""


class NotAReplicationServer(StreamError):
    """The port answers, but doesn't speak laredo.replication.v1 (UNIMPLEMENTED)."""


class ServerUnavailable(StreamError):
    """Nothing listens there, the network is down, or the server is draining or behind
    (UNAVAILABLE)."""

    retryable = True


class TableNotReady(StreamError):
    """The server is still copying the table (FAILED_PRECONDITION)."""

    retryable = True


class Crowded(StreamError):
    """max_clients is reached, or this client lagged or stalled too long (RESOURCE_EXHAUSTED)."""

    retryable = True


class SnapshotOffered(StreamError):
    """The server would send a snapshot, and another server of the list may be able to resume."""

    retryable = True


class ProtocolViolation(StreamError):
    """The server sent what the contract doesn't allow."""

    retryable = True


class StreamBroken(StreamError):
    """The stream ended for any other reason."""

    retryable = True


_BY_CODE: dict[grpc.StatusCode, type[StreamError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: TableNotFound,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.UNIMPLEMENTED: NotAReplicationServer,
    grpc.StatusCode.UNAVAILABLE: ServerUnavailable,
    grpc.StatusCode.FAILED_PRECONDITION: TableNotReady,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Crowded,
}


def of_status(server: str, code: grpc.StatusCode, details: str | None) -> StreamError:
    """The error for a gRPC status."""
    kind = _BY_CODE.get(code, StreamBroken)
    return kind(server, details or f"the stream ended with {code.name}")
