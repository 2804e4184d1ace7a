"""A small server that takes every notice, as SNS, SQS and Kinesis would, and writes it down."""

import base64
import json
import re
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs

ACCOUNT = "123456789012"
REGION = "eu-west-1"


class TakenSnapshot(NamedTuple):
    """One request: whom it was for, what it said, and whose access key signed it."""

    sink: str
    body: dict[str, Any]
    request: dict[str, Any]
    access_key: str

    @property
    def artifact(self) -> tuple[int, int, str]:
        """Epoch, position and kind."""
        high, low = self.body["to_position"].split("/")
        return self.body["epoch"], int(high, 16) << 32 | int(low, 16), self.body["kind"]


class Recorder:
    """Listens on a port of its own; ``taken`` is what arrived, in order, by sink."""

    def __init__(self) -> None:
        self.taken: dict[str, list[TakenSnapshot]] = defaultdict(list)
        self._lock = threading.Lock()
        recorder = self

        class Handler(_Handler):
            def take(self, taken: TakenSnapshot) -> int:
                return recorder._take(taken)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def artifacts(self, sink: str) -> list[tuple[int, int, str]]:
        """Artifacts that ``sink`` was notified of, in order."""
        with self._lock:
            return [taken.artifact for taken in self.taken[sink]]

    def _take(self, taken: TakenSnapshot) -> int:
        with self._lock:
            self.taken[taken.sink].append(taken)
            return len(self.taken[taken.sink])

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def take(self, taken: TakenSnapshot) -> int:
        raise NotImplementedError

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        found = re.search(r"Credential=([^/]+)/", self.headers["Authorization"])
        assert found is not None
        key = found[1]
        action = (self.headers["X-Amz-Target"] or "").rpartition(".")[2]
        if action == "SendMessage":
            sent = json.loads(data)
            self.take(TakenSnapshot(sent["QueueUrl"], json.loads(sent["MessageBody"]), sent, key))
            self._answer({"MessageId": "m"})
        elif action == "PutRecord":
            sent = json.loads(data)
            name = sent.get("StreamName") or sent["StreamARN"]
            body = json.loads(base64.b64decode(sent["Data"]))
            number = self.take(TakenSnapshot(name, body, sent, key))
            self._answer({"ShardId": "shardId-000000000000", "SequenceNumber": str(number)})
        else:
            form = {name: values[0] for name, values in parse_qs(data.decode()).items()}
            self.take(TakenSnapshot(form["TopicArn"], json.loads(form["Message"]), form, key))
            self._send("text/xml", _PUBLISHED)

    def _answer(self, answer: dict[str, Any]) -> None:
        self._send("application/x-amz-json-1.1", json.dumps(answer).encode())

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


_PUBLISHED = b"""<PublishResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/">
<PublishResult><MessageId>m</MessageId></PublishResult>
<ResponseMetadata><RequestId>r</RequestId></ResponseMetadata></PublishResponse>"""
