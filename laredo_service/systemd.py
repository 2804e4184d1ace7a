"""A service: systemd's notifications, and tasks that run as long as it does."""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias

from laredo_service.log import Log

log = Log("laredo.service")

_DEFAULT_CHECK_S = 1.0


class ServiceNotifier:
    """Sends datagrams to the socket in NOTIFY_SOCKET; without one it does nothing.

    Only the main process may send them (NotifyAccess=main), so the variables are taken out of the
    environment: child processes don't inherit them.
    """

    def __init__(self, environ: "os._Environ[str] | dict[str, str] | None" = None) -> None:
        variables = os.environ if environ is None else environ
        self._address = variables.pop("NOTIFY_SOCKET", "")
        self._watchdog_s = _watchdog(variables)
        for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
            variables.pop(name, None)

    async def run(self, is_up: Callable[[], bool]) -> None:
        """Send READY once ``is_up``, and WATCHDOG twice in each period; never returns.

        It runs on the event loop: one that hangs sends nothing, and systemd restarts the program.
        """
        if not self._address:
            return
        is_ready = False
        while True:
            if not is_ready and is_up():
                is_ready = True
                self.send("READY=1")
            if self._watchdog_s is not None:
                self.send("WATCHDOG=1")
            pause = self._watchdog_s / 2 if self._watchdog_s else _DEFAULT_CHECK_S
            await asyncio.sleep(pause if is_ready else min(pause, _DEFAULT_CHECK_S))

    def stopping(self) -> None:
        """The program has begun to end."""
        self.send("STOPPING=1")

    def send(self, state: str) -> None:
        """Send a state; a failure is only logged."""
        if not self._address:
            return
        # An address that begins with @ is in Linux' abstract namespace.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(state.encode(), address)
        except OSError as error:
            log.warning("systemd not notified", state=state, error=str(error))


def _watchdog(variables: Mapping[str, str]) -> float | None:
    """The period of the watchdog in seconds; None if there is none for this process."""
    period, pid = variables.get("WATCHDOG_USEC", ""), variables.get("WATCHDOG_PID")
    if not period.isdecimal() or int(period) == 0 or pid not in (None, str(os.getpid())):
        return None
    return int(period) / 1e6


# Supervised tasks: they run as long as the program does, and an error that ends one is logged.

Crashed: TypeAlias = Callable[[str, BaseException], None]
"""Called with the task's name and its error, which was logged."""


def supervised(
    work: Coroutine[Any, Any, None], what: str, crashed: Crashed, log: Any, event: str
) -> asyncio.Task[None]:
    """Run ``work`` in a task; an error that ends it is logged as ``event`` and given to
    ``crashed``."""
    task = asyncio.create_task(work, name=what)

    def ended(done: asyncio.Task[None]) -> None:
        why = None if done.cancelled() else done.exception()
        if why is not None:
            log.error(event, part=what, error=str(why), exc_info=why)
            crashed(what, why)

    task.add_done_callback(ended)
    return task
