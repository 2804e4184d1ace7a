"""Progress bars of copies below the log, while the server runs in the foreground on a terminal."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live

from laredo_fanout.app.terminal import copy_view

_EVERY = 0.5


async def draw(status: Callable[[], dict[str, Any]]) -> None:
    """Draw the copies of /status until cancelled; nothing where stderr is no terminal."""
    console = Console(stderr=True)
    while console.is_terminal:
        if copy_view.copies(status()):
            await _draw_until_done(console, status)
        await asyncio.sleep(_EVERY)


async def _draw_until_done(console: Console, status: Callable[[], dict[str, Any]]) -> None:
    with (
        Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False) as live,
        _log_above(),
    ):
        while bars := copy_view.copies(status()):
            live.update(Group(*bars), refresh=True)
            await asyncio.sleep(_EVERY)


@contextmanager
def _log_above() -> Iterator[None]:
    """Write the log's lines to the current stderr: above the bars, not across them."""
    found = logging.getLogger().handlers
    handlers = [each for each in found if isinstance(each, logging.StreamHandler)]
    before = [handler.setStream(sys.stderr) for handler in handlers]
    try:
        yield
    finally:
        for handler, stream in zip(handlers, before, strict=True):
            if stream is not None:
                handler.setStream(stream)
