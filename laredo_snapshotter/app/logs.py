"""Structured logs on stderr: a line of JSON each, or readable text on a terminal."""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from laredo_service.printable import printable_event


def configure(level: str, *, as_json: bool | None = None) -> None:
    """Set up logging for the process; ``as_json`` None: unless stderr is a terminal."""
    if as_json is None:
        as_json = not sys.stderr.isatty()
    # JSON writes out by itself what isn't ASCII.
    rendering: list[Any] = [structlog.processors.JSONRenderer()]
    if not as_json:
        rendering = [printable_event, structlog.dev.ConsoleRenderer()]
    number = logging.getLevelNamesMapping()[level.upper()]
    common: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _text_of_bytes,
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*common, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Libraries (urllib3, asyncio, grpc) log their own way; their lines get the same form.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *common],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler])


def _text_of_bytes(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    del logger, method
    for name, value in event.items():
        if isinstance(value, bytes):
            event[name] = value.decode(errors="replace")
    return event
