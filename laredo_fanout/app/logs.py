"""structlog: readable lines on a terminal, JSON lines otherwise; always on stderr."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import Processor

CONSOLE = "console"
JSON = "json"


def format_for_stderr() -> str:
    """``console`` if stderr is a terminal, else ``json``."""
    return CONSOLE if sys.stderr.isatty() else JSON


def configure(log_format: str) -> None:
    """Send structlog's and the standard library's records to stderr in this format."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        if log_format == CONSOLE
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # It tells each start and stop of its own, which ours tell already.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
