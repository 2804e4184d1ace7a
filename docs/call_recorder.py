"""Recorder of a program's calls of the packages' functions, for :mod:`docs.trace`.

The program's own behaviour doesn't change; it is slower while it is recorded.
"""

import asyncio
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parent.parent
_PACKAGES = tuple(
    f"{ROOT}/laredo_{name}/" for name in ("fanout", "snapshotter", "archive", "service", "model")
)
_STEP = asyncio.Handle._run.__code__
"""The event loop's call of a task, which has no caller in the packages."""
_STARTED = 0
"""Argument of the instruction RESUME where a function begins."""


def install(directory: Path) -> None:
    """Have this process append its calls to ``directory``/calls while ``directory``/switch is 1.

    Threads are followed from their start, the main thread from the start of its event loop: to
    follow the imports before it would take many times as long as they do.
    """
    with (directory / "switch").open("rb") as file:
        switch = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
    calls = os.open(directory / "calls", os.O_WRONLY | os.O_APPEND)
    run = asyncio.run

    def record(frame: FrameType, event: str, called: object) -> None:
        if switch[0] and (stack := _stack(frame, event, called)):
            line = [time.monotonic_ns(), os.getpid(), threading.get_ident(), stack]
            os.write(calls, json.dumps(line).encode() + b"\n")

    def followed(main: Coroutine[Any, Any, Any], **options: Any) -> Any:
        sys.setprofile(record)
        return run(main, **options)

    threading.setprofile(record)
    asyncio.run = followed


def _stack(frame: FrameType, event: str, called: object) -> list[tuple[str, str]]:
    """File and name of the packages' functions on the stack, the called one last; empty if the
    event isn't a call of one."""
    found = []
    if event == "c_call":
        found.append(_compiled(called))
        if not found[0][0]:
            return []
    elif event != "call" or not _is_ours(frame) or _goes_on(frame):
        return []
    at: FrameType | None = frame
    while at is not None and at.f_code is not _STEP:
        if _is_ours(at):
            found.append((at.f_code.co_filename[len(f"{ROOT}/") :], at.f_code.co_qualname))
        at = at.f_back
    return found[::-1]


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_PACKAGES)


def _goes_on(frame: FrameType) -> bool:
    """True if a generator or a coroutine goes on where it stopped."""
    return frame.f_code.co_code[frame.f_lasti + 1] & 3 != _STARTED


def _compiled(called: object) -> tuple[str, str]:
    """Source file and name of a function in C; no file if it isn't one of the packages'."""
    owner = type(getattr(called, "__self__", None))
    module = getattr(called, "__module__", None) or owner.__module__
    file = f"{module.replace('.', '/')}.c"
    is_ours = file.startswith("laredo_") and (ROOT / file).exists()
    return file if is_ours else "", getattr(called, "__name__", "")
