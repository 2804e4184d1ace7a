"""A store that throws everything away, fast: for what an upload holds in memory.

    python -m tests.archive.s3.sink PORT_FILE

Parts are counted, nothing is kept; /held answers how many bytes it has taken.
"""

import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_BLOCK = 1 << 20


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        left = int(self.headers["Content-Length"])
        buffer = memoryview(bytearray(_BLOCK))
        while left:
            taken = self.rfile.readinto(buffer[: min(left, _BLOCK)])
            assert taken, "the client went away"
            left -= taken
        self._answer(b"")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if re.search(r"[?&]uploads", self.path):
            self._answer(
                b"<InitiateMultipartUploadResult><UploadId>1</UploadId>"
                b"</InitiateMultipartUploadResult>"
            )
        else:
            self._answer(
                b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"
            )

    def do_DELETE(self) -> None:
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("ETag", '"x"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    Path(sys.argv[1]).write_text(str(server.server_port))
    server.serve_forever()


if __name__ == "__main__":
    main()
