"""Many gRPC clients in one process that only count bytes: ``python -m benchmarks.grpc_load``.

As ``benchmarks.connect_load``, over HTTP/2 with no more of it than a client needs: frames are told
apart by their heads, PING and SETTINGS are answered, and windows are so large that none is ever
renewed.
"""

import socket
from argparse import Namespace

from benchmarks.connect_load import PATH, Clients, arguments_given, follow, sync_request
from laredo_fanout.wire import replication_pb2 as wire

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_HEAD = 9
_STREAM = 1
_INITIAL_WINDOW_SIZE = 4
_LARGEST_WINDOW = (1 << 31) - 1
_FIRST_WINDOW = 65_535
_MESSAGE_HEAD = 5


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """An HTTP/2 frame."""
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return head + payload


def headers(port: int) -> bytes:
    """The request's, each as a literal that is entered into no table (RFC 7541, 6.2.2)."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": PATH,
        ":authority": f"127.0.0.1:{port}",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    block = b""
    for name, value in fields.items():
        block += b"\0" + bytes((len(name),)) + name.encode()
        block += bytes((len(value),)) + value.encode()
    return block


class GrpcClients(Clients):
    """The bytes that count are those of the DATA frames."""

    def __init__(self, arguments: Namespace) -> None:
        self._rests: dict[int, bytes] = {}
        super().__init__(arguments)

    def opened(self, arguments: Namespace, number: int) -> socket.socket:
        """A connection with one Sync call of the base protocol."""
        request = sync_request(arguments, f"bench-grpc-{number}")
        window = _INITIAL_WINDOW_SIZE.to_bytes(2, "big") + _LARGEST_WINDOW.to_bytes(4, "big")
        end = socket.create_connection(("127.0.0.1", arguments.port))
        end.sendall(
            _PREFACE
            + frame(_SETTINGS, 0, 0, window)
            + frame(_WINDOW_UPDATE, 0, 0, (_LARGEST_WINDOW - _FIRST_WINDOW).to_bytes(4, "big"))
            + frame(_HEADERS, _END_HEADERS, _STREAM, headers(arguments.port))
            + frame(_DATA, _END_STREAM, _STREAM, b"\0" + len(request).to_bytes(4, "big") + request)
        )
        return end

    def body(self, end: socket.socket, data: memoryview) -> bytes:
        """The DATA frames' payloads; a frame that isn't whole waits for its rest.

        :raises ConnectionError: the server has ended the call.
        """
        number = end.fileno()
        received = self._rests.pop(number, b"") + bytes(data)
        at, found = 0, b""
        while at + _HEAD <= len(received):
            stop = at + _HEAD + int.from_bytes(received[at : at + 3], "big")
            if stop > len(received):
                break
            kind, flags, payload = received[at + 3], received[at + 4], received[at + _HEAD : stop]
            if kind == _DATA:
                found += payload
            elif kind in (_PING, _SETTINGS) and not flags & _ACK:
                end.sendall(frame(kind, _ACK, 0, payload if kind == _PING else b""))
            elif kind == _GOAWAY or (kind == _HEADERS and flags & _END_STREAM):
                raise ConnectionError(f"the server ended the call: {payload!r}")
            at = stop
        if at < len(received):
            self._rests[number] = received[at:]
        return found

    def commits(self) -> list[tuple[int, float]]:
        """The end of each change in the bytes that were kept, and its commit time."""
        found, at, kept = [], 0, bytes(self.kept)
        while at + _MESSAGE_HEAD <= len(kept):
            end = at + _MESSAGE_HEAD + int.from_bytes(kept[at + 1 : at + _MESSAGE_HEAD], "big")
            if end > len(kept):
                break
            response = wire.SyncResponse.FromString(kept[at + _MESSAGE_HEAD : end])
            if response.HasField("journal_entry"):
                found.append((end, response.journal_entry.timestamp.ToNanoseconds() / 1e9))
            at = end
        return found


if __name__ == "__main__":
    given = arguments_given()
    follow(GrpcClients(given), given)
