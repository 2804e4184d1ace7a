"""Readiness of the server, as the main process reports it to a serving process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from laredo_fanout.serving.errors import Full


class Readiness:
    """Readiness as in /health/ready; never ready while the server drains.

    Calls that wait for it are few (`most_calls`), and leave when the server drains.
    """

    def __init__(self, *, ready: bool = False, most_calls: int = 1000) -> None:
        self.draining = False
        self._ready = ready
        self._most_calls = most_calls
        self._calls = 0
        self._changed: asyncio.Future[None] | None = None
        self._left = asyncio.Event()
        self._left.set()

    @property
    def serving(self) -> bool:
        """True if new streams are served."""
        return self._ready and not self.draining

    @property
    def waited_for(self) -> bool:
        """True if calls wait for it."""
        return self._calls > 0

    def update(self, *, ready: bool) -> None:
        """Note the state of /health/ready now."""
        self._ready = ready
        self._notify()

    async def drain(self, patience_s: float) -> None:
        """Not ready from now on; returns when the calls that waited have sent it and left."""
        self.draining = True
        self._notify()
        try:
            await asyncio.wait_for(self._left.wait(), patience_s)
        except TimeoutError:
            # Whoever takes no message learns it by the end of the connection.
            return

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A call that waits for changes.

        :raises Full: there are too many.
        """
        if self._calls >= self._most_calls:
            raise Full(f"the server has {self._calls} calls that wait for its health already")
        self._calls += 1
        self._left.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._left.set()

    def changed(self) -> asyncio.Future[None]:
        """The future that the next change resolves; wait for it without cancelling it."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    def _notify(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set_result(None)
