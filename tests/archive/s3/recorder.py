"""A store as simple as can be, to see what reaches it: PUT keeps, GET gives, all is counted."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


class Recorder:
    """Every request that came whole, as (method, path, body)."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, bytes]] = []
        self.headers: list[dict[str, str]] = []
        self.objects: dict[str, bytes] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), name="recorder"
        )

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def handle(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        self.requests.append((method, path, body))
        if method == "PUT":
            self.objects[path] = body
            return 200, b""
        if path not in self.objects:
            return 404, b"none"
        return 200, self.objects[path]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_any(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(size)
                if len(body) < size:
                    return
                recorder.headers.append(dict(self.headers.items()))
                status, said = recorder.handle(self.command, self.path, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(said)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_any  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Tests print what they need."""

        return Handler
