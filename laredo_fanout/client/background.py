"""The one event loop that all thread-safe clients of a process share.

grpc.aio hands every loop's completions through one socket of the process: many
loops wake each other, and one that was closed makes the others log errors. So
there is one, on a daemon thread, and it is never closed.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_owner = 0


def loop() -> asyncio.AbstractEventLoop:
    """The loop, running; a new one after a fork."""
    global _loop, _owner
    with _lock:
        if _loop is None or _owner != os.getpid():
            _loop, _owner = asyncio.new_event_loop(), os.getpid()
            threading.Thread(
                target=_loop.run_forever, name="laredo-fanout-client", daemon=True
            ).start()
        return _loop


def call(work: Coroutine[Any, Any, T]) -> T:
    """Run it on the loop and wait for what it gives."""
    return asyncio.run_coroutine_threadsafe(work, loop()).result()
