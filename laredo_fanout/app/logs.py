"""Logs of the server, and tasks whose end is an error in them."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import structlog
from structlog.typing import Processor

from laredo_service import systemd as of_program
from laredo_service.printable import printable_event

AUTO, TEXT, JSON = "auto", "text", "json"


@dataclass(frozen=True)
class LogSettings:
    """The log's format and level."""

    #: AUTO is TEXT on a terminal, else JSON.
    log_format: str = AUTO
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
    # json.dumps escapes control characters by itself; text needs printable_event.
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
    # uvicorn logs its start and its stop, which the server logs already.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _is_text(log_format: str) -> bool:
    return log_format == TEXT or (log_format == AUTO and sys.stderr.isatty())


log = structlog.get_logger("laredo_fanout")


_SHOWN = 10
_MOST_APART_S = 60.0
_DIGITS = re.compile(r"\d+")


class ReadinessLog:
    """Logs when the server becomes ready, and when and why it no longer is.

    A problem is logged once until the server is ready again, whatever numbers are in its text.
    While new problems appear, the pause between two lines doubles, up to a minute.
    """

    def __init__(self, now: float) -> None:
        self._started = now
        self._known: set[str] = set()
        self._is_shown_unready = True
        self._logged_at = now - _MOST_APART_S
        self._apart = 1.0

    def note(self, problems: Sequence[str], now: float) -> None:
        """Log the new ones of these problems, at ``now`` by the monotonic clock."""
        if not problems:
            if self._is_shown_unready:
                log.info("server ready", seconds=round(now - self._started, 3))
                self._known, self._is_shown_unready = set(), False
            return
        new = {each: _DIGITS.sub("", each) for each in problems}
        new = {each: kind for each, kind in new.items() if kind not in self._known}
        if not new or now - self._logged_at < self._apart:
            return
        quiet = now - self._logged_at >= _MOST_APART_S
        self._apart = 1.0 if quiet else min(2 * self._apart, _MOST_APART_S)
        self._logged_at, self._is_shown_unready = now, True
        self._known |= set(new.values())
        shown = list(new)[:_SHOWN]
        log.info("server not ready", problems=shown, others=len(problems) - len(shown))


Crashed: TypeAlias = of_program.Crashed
"""Called with the task's name and its error, which was logged."""


def only_logged(what: str, why: BaseException) -> None:
    """Do nothing more: the program goes on without the task."""


def supervised(
    work: Coroutine[Any, Any, None], what: str, crashed: Crashed = only_logged
) -> asyncio.Task[None]:
    """Run ``work`` in a task; an error that ends it is logged and given to ``crashed``."""
    return of_program.supervised(work, what, crashed, log, "a part of the server crashed")
