"""The server's supervised tasks: they run as long as it does, and an error that ends one is
logged."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeAlias

import structlog

from laredo_service import systemd as of_program

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
