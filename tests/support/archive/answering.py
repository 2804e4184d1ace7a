"""An HTTP server that answers as it is told: the refusals that no test server gives."""

import socketserver
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.processes import PATIENCE_S

REQUEST_ID = "4442587FB7D0A2F9"


@dataclass(frozen=True)
class Answer:
    """An HTTP answer; ``cut`` ends the connection after that many bytes of it."""

    status: int = 200
    body: bytes | str = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    silent: bool = False
    """Nothing is said until the server closes."""

    def to_bytes(self) -> bytes:
        body = self.body.encode() if isinstance(self.body, str) else self.body
        headers = {
            "Date": formatdate(usegmt=True),
            "Content-Length": str(len(body)),
            "Connection": "close",
            "x-amz-request-id": REQUEST_ID,
            **self.headers,
        }
        lines = [f"HTTP/1.1 {self.status} Told", *(f"{k}: {v}" for k, v in headers.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


@dataclass
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Answering:
    """Answers each request with the next of ``answers``; with the last one for ever."""

    def __init__(self, endpoint: str, closing: threading.Event) -> None:
        self.endpoint = endpoint
        self.closing = closing
        self.answers: list[Answer] = []
        self.asked: list[Asked] = []
        self._lock = threading.Lock()

    def tell(self, *answers: Answer) -> None:
        """From now on, answer like this."""
        with self._lock:
            self.answers = list(answers)

    def next(self, asked: Asked) -> Answer:
        with self._lock:
            self.asked.append(asked)
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def answering(*answers: Answer, tls: ssl.SSLContext | None = None) -> Iterator[Answering]:
    """A server on a free port of the loopback interface."""
    closing = threading.Event()
    server = _Server(("127.0.0.1", 0), _Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    scheme = "http" if tls is None else "https"
    server.told = Answering(f"{scheme}://127.0.0.1:{server.server_address[1]}", closing)
    server.told.tell(*answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.told
    finally:
        closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    told: Answering

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is what some tests are about."""


class _Handler(BaseHTTPRequestHandler, socketserver.StreamRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline()
        understood = bool(self.raw_requestline) and self.parse_request()
        self.close_connection = True
        if not understood:
            return
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        answer = self.server.told.next(Asked(self.command, self.path, dict(self.headers), body))
        if answer.silent:
            self.server.told.closing.wait(PATIENCE_S)
            return
        self.wfile.write(answer.to_bytes()[: answer.cut])

    def log_message(self, *_: Any) -> None:
        """Nothing on the tests' output."""
