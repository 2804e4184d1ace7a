"""One Connect client as fast as it takes messages: ``python -m benchmarks.connect_reader``.

Reads the table by the base protocol, counts messages by their envelopes and parses none of them.
Prints {"at": ...} at the first and after ``--messages`` messages, and its own CPU seconds.
"""

import json
import time
from argparse import ArgumentParser, Namespace

from benchmarks.connect_load import opened

_READ = 1 << 20


def main(arguments: Namespace) -> None:
    end = opened(arguments, 0)
    buffer = memoryview(bytearray(_READ))
    counter = Counter()
    began = time.time()
    while counter.messages < arguments.messages:
        size = end.recv_into(buffer)
        if not size:
            raise ConnectionError("the server closed the connection")
        if not counter.messages:
            began = time.time()
        counter.take(bytes(buffer[:size]))
    print(
        json.dumps(
            {
                "seconds": time.time() - began,
                "cpu_seconds": time.process_time(),
                "messages": counter.messages,
            }
        ),
        flush=True,
    )
    end.close()


class Counter:
    """Counts the messages of a chunked body."""

    def __init__(self) -> None:
        self.messages = 0
        self._rest = b""
        self._begun = False

    def take(self, data: bytes) -> None:
        """Count the chunks that are whole."""
        data = self._rest + data
        at = 0
        if not self._begun:
            at = data.find(b"\r\n\r\n") + 4
            self._begun = at > 3
        while self._begun:
            head = data.find(b"\r\n", at)
            end = head + 4 + int(data[at:head], 16) if head > 0 else len(data) + 1
            if end > len(data):
                break
            at = head + 2
            while at < end - 2:
                at += 5 + int.from_bytes(data[at + 1 : at + 5], "big")
                self.messages += 1
            at = end
        self._rest = data[at:]


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--position", default="")
    parser.add_argument("--messages", type=int, required=True)
    main(parser.parse_args())
