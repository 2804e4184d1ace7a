"""Writes rows to stdout byte for byte; for a terminal control characters are escaped."""

import sys
from codecs import getincrementaldecoder
from typing import IO, Protocol

from laredo_service.printable import printable_lines


class LineOutput(Protocol):
    """Takes whole lines, any number at once."""

    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> object: ...


def data_output() -> LineOutput:
    """The output for rows. JSON leaves C1 controls and bidirectional marks as they are."""
    out = sys.stdout.buffer
    return _Terminal(out) if sys.stdout.isatty() else out


class _Terminal:
    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        # A character may come in two pieces.
        self._decoder = getincrementaldecoder("utf-8")("backslashreplace")

    def write(self, data: bytes, /) -> None:
        shown = printable_lines(self._decoder.decode(data))
        self._out.write(shown.encode(sys.stdout.encoding or "utf-8", errors="backslashreplace"))

    def flush(self) -> None:
        self._out.flush()
