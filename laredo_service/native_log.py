"""Lines that native libraries write to descriptor 2 by themselves, such as gRPC's, in the log."""

import faulthandler
import logging
import os
import re
import sys
import threading

_OF_ABSL = re.compile(r"([IWEF])\d{4} [\d:.]+ +\d+ ([\w.]+:\d+)\] (.*)")
"""Level, place and text of a line of gRPC's core."""
_LEVELS = {"I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}
_PREAMBLE = "All log messages before absl::InitializeLog()"

_stderr = [2]


def descriptor() -> int:
    """The descriptor of the real stderr, for child processes."""
    return _stderr[-1]


def capture() -> None:
    """Log what native code writes to descriptor 2. Call it once, before the log is configured.

    Python's own output and the trace of a crash still go straight to stderr.
    """
    _stderr.append(os.dup(2))
    sys.stderr = os.fdopen(
        _stderr[-1], "w", buffering=1, encoding="utf-8", errors="backslashreplace"
    )
    faulthandler.enable(sys.stderr)
    ours, theirs = os.pipe()
    os.dup2(theirs, 2)
    os.close(theirs)
    threading.Thread(target=_log_lines, args=(ours,), name="native log", daemon=True).start()


def _log_lines(end: int) -> None:
    with os.fdopen(end, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            text = line.strip()
            found = _OF_ABSL.match(text)
            if found is not None:
                level, place, message = found.groups()
                logging.getLogger("grpc").log(_LEVELS[level], "%s (%s)", message, place)
            elif text and _PREAMBLE not in text:
                logging.getLogger("stderr").warning("%s", text)
