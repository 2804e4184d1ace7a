"""An open gRPC call: how it is ended from outside, and when its client counts as stalled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from laredo_fanout.serving.calls.caller import Caller
from laredo_fanout.serving.errors import Refused, Stalled
from laredo_fanout.serving.ports import Lease


class Call:
    """A handle on an open call, made in its task. `table` and `lease` are set later."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.table = ""
        self.lease: Lease | None = None
        self.verdict: Refused | None = None
        self._task = asyncio.current_task()

    def end(self, verdict: Refused) -> None:
        """Stop the call with this verdict, also while a write is blocked."""
        if self.verdict is None and self._task is not None:
            self.verdict = verdict
            self._task.cancel()

    async def ended(self) -> None:
        """Wait until the call has been answered, or its client is gone."""
        if self._task is not None:
            await asyncio.wait({self._task})


class StallGuard:
    """Ends a call whose client takes none of the messages that wait for it for `timeout_s`.

    `excused` returns whether the call waits for something other than its client.
    """

    def __init__(self, call: Call, timeout_s: float, excused: Callable[[], bool]) -> None:
        self._call = call
        self._timeout_s = timeout_s
        self._excused = excused
        self._moved = True
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(timeout_s, self._check)

    def moved(self) -> None:
        """The client took a message, or waited for something else than itself."""
        self._moved = True

    def stop(self) -> None:
        """The call is over."""
        self._timer.cancel()

    def _check(self) -> None:
        if not self._moved and not self._excused():
            client_id = self._call.caller.client_id
            self._call.end(
                Stalled(f"client {client_id!r} took no message for {self._timeout_s:g} s")
            )
        self._moved = False
        self._timer = self._loop.call_later(self._timeout_s, self._check)
