"""Many Connect clients in one process that only count bytes: ``python -m benchmarks.connect_load``.

Each follows the table by the base protocol over a connection of its own. Prints {"ready": clients},
and, once the first one was sent ``--commits`` changes, the latencies from PostgreSQL's commit time
to the read, in milliseconds, of all of them after the first ``--skip``; and its own CPU seconds.
Only the first client's bytes are kept and parsed, when it is over: all are sent the same.
"""

import json
import select
import socket
import time
from argparse import ArgumentParser, Namespace
from array import array
from bisect import bisect_right

from laredo_fanout.wire import replication_pb2 as wire

_READ = 1 << 18
PATH = "/laredo.replication.v1.LaredoReplicationService/Sync"
_QUIET_S = 1.0


def sync_request(arguments: Namespace, client: str) -> bytes:
    """A request of the base protocol."""
    schema, table = arguments.table.split(".")
    return wire.SyncRequest(
        schema=schema,
        table=table,
        client_id=client,
        last_known_source_position=arguments.position,
    ).SerializeToString()


def opened(arguments: Namespace, number: int) -> socket.socket:
    """A connection over which a Sync call of the base protocol was begun."""
    request = sync_request(arguments, f"bench-connect-{number}")
    body = b"\0" + len(request).to_bytes(4, "big") + request
    end = socket.create_connection(("127.0.0.1", arguments.port))
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nConnect-Protocol-Version: 1\r\n"
        f"Content-Type: application/connect+proto\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    end.sendall(head.encode() + body)
    return end


class Clients:
    """The connections, and the number of bytes that had come over each at the time of each read."""

    def __init__(self, arguments: Namespace) -> None:
        self._poll = select.epoll()
        self._ends: dict[int, socket.socket] = {}
        self.totals: dict[int, int] = {}
        self.reads: dict[int, tuple[array[int], array[float]]] = {}
        self.kept = bytearray()
        self._buffer = memoryview(bytearray(_READ))
        for number in range(arguments.clients):
            self._connect(arguments, number)
        self._first = next(iter(self._ends))

    def opened(self, arguments: Namespace, number: int) -> socket.socket:
        """A connection over which client ``number`` has begun to follow the table."""
        return opened(arguments, number)

    def body(self, end: socket.socket, data: memoryview) -> memoryview | bytes:
        """Of what was read from ``end``, the bytes that all clients are sent alike."""
        return data

    def commits(self) -> list[tuple[int, float]]:
        """The end of each change in the bytes that were kept, and its commit time."""
        return commits(bytes(self.kept))

    def _connect(self, arguments: Namespace, number: int) -> None:
        end = self.opened(arguments, number)
        end.setblocking(False)
        self._ends[end.fileno()] = end
        self.totals[end.fileno()] = 0
        self._poll.register(end.fileno(), select.EPOLLIN)

    def read_until_quiet(self) -> None:
        """Read what begins a stream; returns when all had something, and nothing has come since."""
        while self.read(_QUIET_S) or not all(self.totals.values()):
            pass
        self.totals = dict.fromkeys(self.totals, 0)
        self.reads = {number: (array("q"), array("d")) for number in self.totals}
        self.kept.clear()

    def read(self, timeout: float) -> int:
        """Read what has come; returns from how many connections.

        :raises ConnectionError: the server has closed one.
        """
        ready = self._poll.poll(timeout)
        for number, _ in ready:
            size = self._ends[number].recv_into(self._buffer)
            if not size:
                raise ConnectionError("the server closed a connection")
            body = self.body(self._ends[number], self._buffer[:size])
            if not body:
                continue
            self.totals[number] += len(body)
            if number == self._first:
                self.kept += body
            if self.reads:
                sizes, times = self.reads[number]
                sizes.append(self.totals[number])
                times.append(time.time())
        return len(ready)


def commits(kept: bytes) -> list[tuple[int, float]]:
    """The end of each change in these bytes, and its commit time."""
    found, at = [], 0
    while at < len(kept):
        head = kept.index(b"\r\n", at)
        size = int(kept[at:head], 16)
        end = head + 2 + size + 2
        if end > len(kept):
            break
        message, inside = head + 2, head + 2 + size
        while message < inside:
            length = int.from_bytes(kept[message + 1 : message + 5], "big")
            response = wire.SyncResponse.FromString(kept[message + 5 : message + 5 + length])
            message += 5 + length
            if response.HasField("journal_entry"):
                found.append((end, response.journal_entry.timestamp.ToNanoseconds() / 1e9))
        at = end
    return found


def latencies(clients: Clients, ends: list[tuple[int, float]]) -> list[float]:
    """The latency of each of these changes at each client, in milliseconds."""
    found = []
    for sizes, times in clients.reads.values():
        for end, committed in ends:
            read = bisect_right(sizes, end - 1)
            if read < len(times):
                found.append((times[read] - committed) * 1000)
    return found


def follow(clients: Clients, arguments: Namespace) -> None:
    """Let the clients read for ``arguments.seconds``, and print the figures."""
    clients.read_until_quiet()
    print(json.dumps({"ready": len(clients.totals)}), flush=True)
    before = time.process_time()
    began = time.time()
    deadline = began + arguments.seconds
    while time.time() < deadline:
        clients.read(0.2)
    ends = clients.commits()[arguments.skip :]
    messages = sum(map(len, (times for _, times in clients.reads.values())))
    print(
        json.dumps(
            {
                "cpu_seconds": time.process_time() - before,
                "seconds": time.time() - began,
                "reads": messages,
                "bytes": sum(clients.totals.values()),
                "changes": len(ends),
                "latencies": [round(each, 2) for each in latencies(clients, ends)],
            }
        ),
        flush=True,
    )


def arguments_given() -> Namespace:
    """The arguments of the command line."""
    parser = ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--position", required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--skip", type=int, default=40)
    return parser.parse_args()


if __name__ == "__main__":
    given = arguments_given()
    follow(Clients(given), given)
