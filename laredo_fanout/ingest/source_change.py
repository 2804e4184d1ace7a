"""Other tables, or other options of the source, for the sessions to come."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from laredo_fanout.source_options import SourceTableOptions

Options = TypeVar("Options")
"""The options of the source: PostgreSQL's or those of a relay."""


@dataclass(frozen=True)
class SourceChange(Generic[Options]):
    """Tables and options for the next session."""

    options: Options
    tables: tuple[SourceTableOptions, ...]


class PendingSourceChange(Generic[Options]):
    """The change that no session has begun with yet; its methods are called from any thread."""

    def __init__(self) -> None:
        self._change: SourceChange[Options] | None = None
        self._asked: list[Future[None]] = []
        self._lock = threading.Lock()

    @property
    def waits(self) -> bool:
        """True if a change is pending."""
        return self._change is not None

    def put(self, options: Options, tables: Sequence[SourceTableOptions]) -> Future[None]:
        """Ask for this change, in place of any that waits; done when it is followed, or a later."""
        asked = Future[None]()
        with self._lock:
            self._change = SourceChange(options, tuple(tables))
            self._asked.append(asked)
        return asked

    def take(self) -> SourceChange[Options] | None:
        """The change that waits, if there is one: the session that begins now is the first."""
        with self._lock:
            change, self._change = self._change, None
        return change

    def followed(self) -> None:
        """A session has connected: whoever asked for what it follows is answered."""
        with self._lock:
            asked, self._asked = ([], self._asked) if self.waits else (self._asked, [])
        for each in asked:
            if each.set_running_or_notify_cancel():
                each.set_result(None)
