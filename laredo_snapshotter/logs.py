"""Structured logs on stderr: a line of JSON each, or readable text on a terminal."""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog


def configure(level: str, *, as_json: bool | None = None) -> None:
    """Set up logging for the process; ``as_json`` None: unless stderr is a terminal."""
    if as_json is None:
        as_json = not sys.stderr.isatty()
    renderer: Any = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    )
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=max(number, logging.WARNING), stream=sys.stderr, format="%(message)s")
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _text_of_bytes,
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def _text_of_bytes(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    del logger, method
    for name, value in event.items():
        if isinstance(value, bytes):
            event[name] = value.decode(errors="replace")
    return event
