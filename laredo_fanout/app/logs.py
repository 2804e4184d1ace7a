"""Logs of the server, and tasks whose end is an error in them."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeAlias

import structlog
from structlog.typing import Processor

from laredo_service import systemd as of_program
from laredo_service.printable import printable_event

AUTO, TEXT, JSON = "auto", "text", "json"
FORMATS = (AUTO, JSON, TEXT)
LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class LogSettings:
    """The log's format and level."""

    #: One of FORMATS; auto is text on a terminal.
    log_format: str = AUTO
    #: One of LEVELS.
    level: str = "info"

    @property
    def arguments(self) -> tuple[str, str]:
        """The command line arguments of a child process, which shares our stderr."""
        return self.log_format, self.level


def configure(chosen: LogSettings) -> None:
    """Send structlog's and the standard library's records to stderr."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    # JSON writes out by itself what isn't ASCII.
    rendering: list[Processor] = [structlog.processors.JSONRenderer()]
    if _is_text(chosen.log_format):
        readable = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        rendering = [printable_event, readable]
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
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    logging.basicConfig(level=chosen.level.upper(), handlers=[handler], force=True)
    # It logs each start and stop of its own, which ours logs already.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _is_text(log_format: str) -> bool:
    return log_format == TEXT or (log_format == AUTO and sys.stderr.isatty())


# The server's supervised tasks: they run as long as it does, and an error that ends one is logged.

Crashed: TypeAlias = of_program.Crashed
"""Called with the task's name and its error, which was logged."""

log = structlog.get_logger("laredo_fanout")


def only_logged(what: str, why: BaseException) -> None:
    """Do nothing more: the program goes on without the task."""


def supervised(
    work: Coroutine[Any, Any, None], what: str, crashed: Crashed = only_logged
) -> asyncio.Task[None]:
    """Run ``work`` in a task; an error that ends it is logged and given to ``crashed``."""
    return of_program.supervised(work, what, crashed, log, "a part of the server crashed")
