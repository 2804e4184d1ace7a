"""Logs of a command on stderr: one line each, above the progress bar if there is one."""

import logging
import sys

import structlog
from structlog.typing import EventDict, WrappedLogger

from laredo_service.printable import printable

_TRIED_AGAIN = {
    "S3 request retried",
    "upload completion retried",
    "manifest swap not confirmed",
    "role is asked for again",
}
"""Failures that are retried; reported as an error when retries end."""


def set_up(*, verbose: bool) -> None:
    """Warnings; with ``verbose`` also what is tried again, and what is done."""
    structlog.configure(
        processors=[*([] if verbose else [_without_what_is_tried_again]), _line],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.INFO if verbose else logging.WARNING
        ),
        # Found for each line: while a bar is drawn, stderr is replaced to keep both apart.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
    if not verbose:
        logging.getLogger("urllib3").setLevel(logging.ERROR)


def _without_what_is_tried_again(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    if event["event"] in _TRIED_AGAIN:
        raise structlog.DropEvent
    return event


def _line(_: WrappedLogger, level: str, event: EventDict) -> str:
    what = event.pop("event")
    details = ", ".join(f"{name}={value}" for name, value in event.items())
    return printable(f"laredo-archive: {level}: {what}" + (f" ({details})" if details else ""))
