"""Logs of the modules that other programs import: where the program sends its own, else nowhere.

A program that has configured structlog gets the events there. In any other they are records of the
standard library's loggers, which print nothing unless the program has set up ``logging``.
"""

import faulthandler
import logging
import os
import re
import sys
import threading
from typing import Any

from laredo_service.printable import printable

_PACKAGES = ("laredo_archive", "laredo_fanout", "laredo_service")


class Log:
    """A module's log. structlog is not imported: a program without it reads archives too."""

    def __init__(self, name: str, **bound: Any) -> None:
        """``bound`` are fields of every event."""
        self._name = name
        self._bound = bound
        self._structured: Any = None
        self._standard = logging.getLogger(name)

    def bind(self, **fields: Any) -> "Log":
        """The log with more fields in every event."""
        return Log(self._name, **{**self._bound, **fields})

    def debug(self, event: str, **fields: Any) -> None:
        """Log what only a developer wants to know."""
        self._log("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log what was done."""
        self._log("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log a failure that the program copes with."""
        self._log("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log a failure that somebody must see."""
        self._log("error", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Log the error that is handled, with its traceback."""
        self._log("exception", event, fields)

    def _log(self, method: str, event: str, fields: dict[str, Any]) -> None:
        structlog = sys.modules.get("structlog")
        if structlog is not None and structlog.is_configured():
            if self._structured is None:
                self._structured = structlog.get_logger(self._name, **self._bound)
            getattr(self._structured, method)(event, **fields)
            return
        special = {"exc_info": fields.pop("exc_info")} if "exc_info" in fields else {}
        details = ", ".join(f"{name}={value}" for name, value in {**self._bound, **fields}.items())
        text = f"{event} ({details})" if details else event
        getattr(self._standard, method)("%s", printable(text), **special)


for package in _PACKAGES:
    logging.getLogger(package).addHandler(logging.NullHandler())


# Lines that native libraries write to descriptor 2 by themselves, such as those of gRPC.

_OF_ABSL = re.compile(r"([IWEF])\d{4} [\d:.]+ +\d+ ([\w.]+:\d+)\] (.*)")
"""Level, place and text of a line of gRPC's core."""
_LEVELS = {"I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}
_PREAMBLE = "All log messages before absl::InitializeLog()"

_stderr = [2]


def native_stderr() -> int:
    """The descriptor of the real stderr, for child processes."""
    return _stderr[-1]


def capture_native_lines() -> None:
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
