"""Tasks that run as long as the program does: none of them ends unseen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import structlog

Crashed: TypeAlias = Callable[[str, BaseException], None]
"""Told what crashed and why; the log has it already."""

log = structlog.get_logger("laredo_fanout")


def only_logged(what: str, why: BaseException) -> None:
    """The program goes on without it."""


def supervised(
    work: Coroutine[Any, Any, None], what: str, crashed: Crashed = only_logged
) -> asyncio.Task[None]:
    """Run it in a task of its own; if it ends with an error, log that and tell ``crashed``."""
    task = asyncio.create_task(work, name=what)

    def ended(done: asyncio.Task[None]) -> None:
        why = None if done.cancelled() else done.exception()
        if why is not None:
            log.error("a part of the server crashed", part=what, error=str(why), exc_info=why)
            crashed(what, why)

    task.add_done_callback(ended)
    return task
