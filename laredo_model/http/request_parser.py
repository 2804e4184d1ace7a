"""h11's parser of requests with bounds on the work that they can cause."""

import h11

MAX_LINES = 100
"""Of the head of a request, or of what follows its last chunk."""
MAX_CHUNKS = 256
"""Of one request's body."""
MAX_HEAD = 16 << 10
"""Bytes of a head, or of a chunk's own line."""
_PIECE = 4 << 10
_END = b"\r\n\r\n"


class RequestParser(h11.Connection):
    """The server's side of a connection.

    h11 takes 5 µs or more for a line or a chunk, and all those of one read are parsed without a
    pause: a client that sends them a byte long would hold the event loop for 0.1 s each time.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        #: What h11 doesn't have yet, so that what it has is short.
        self._received = bytearray()
        self._lines = 0
        self._chunks = 0
        #: Whether a chunk's line comes next.
        self._between_chunks = False

    def receive_data(self, data: bytes) -> None:
        """Take what the client sent."""
        self._received += data

    @property
    def trailing_data(self) -> tuple[bytes, bool]:
        """Received bytes that aren't parsed yet, and True if the client has closed."""
        ahead, closed = super().trailing_data
        return ahead + self._received, closed

    def start_next_cycle(self) -> None:
        """Go on with the next request."""
        super().start_next_cycle()
        self._lines = super().trailing_data[0].count(b"\n")

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Parse the next event of the request, as h11 does.

        :raises h11.RemoteProtocolError: it isn't HTTP, or has too many lines or chunks, or two
            lengths: a proxy might have taken the other one for true (RFC 9112, 6.3).
        """
        self._check_lines()
        event = super().next_event()
        while event is h11.NEED_DATA and self._received:
            piece = bytes(self._received[:_PIECE])
            del self._received[:_PIECE]
            self._lines += piece.count(b"\n")
            super().receive_data(piece)
            self._check_lines()
            event = super().next_event()
        if isinstance(event, h11.Request):
            names = [name for name, _ in event.headers]
            self._chunks, self._between_chunks = 0, b"transfer-encoding" in names
            if self._between_chunks and b"content-length" in names:
                raise h11.RemoteProtocolError("Content-Length and Transfer-Encoding at once")
        elif isinstance(event, h11.Data):
            self._chunks, self._between_chunks = self._chunks + event.chunk_start, event.chunk_end
            if self._chunks > MAX_CHUNKS:
                raise h11.RemoteProtocolError(f"a body has {MAX_CHUNKS} chunks at most")
        return event

    def _check_lines(self) -> None:
        """Count the lines that h11 would parse at once, if there can be too many."""
        if self._lines <= MAX_LINES:
            return
        ahead = super().trailing_data[0]
        if self.their_state is h11.IDLE or (self._between_chunks and ahead.startswith(b"0")):
            end = ahead.find(_END)
            if ahead.count(b"\n", 0, len(ahead) if end < 0 else end) > MAX_LINES:
                problem = f"a request has {MAX_LINES} lines at most"
                raise h11.RemoteProtocolError(problem, error_status_hint=431)
