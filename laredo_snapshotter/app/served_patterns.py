"""Asks servers for their tables, so that patterns follow them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from laredo_fanout.client.errors import InvalidRequest, StreamError
from laredo_fanout.client.stream.endpoint import Endpoint
from laredo_fanout.client.stream.stream import served_tables
from laredo_service.table_pattern import TableName
from laredo_snapshotter.table_patterns import Found, ServedPattern

log = structlog.get_logger(__name__)

INTERVAL_S = 5.0
"""Interval at which a server is asked, in seconds."""


class ServedPatterns:
    """Follows the tables that patterns match. All methods belong to one event loop.

    A table is gone only when two answers in a row lack it; while a server doesn't answer all stay.
    """

    def __init__(
        self,
        patterns: Mapping[ServedPattern, str],
        found: Callable[[Found], Awaitable[None]],
        interval: float = INTERVAL_S,
    ) -> None:
        """``patterns``: each with its configuration path. ``found`` is called with all tables when
        they are others than before."""
        self.rounds = 0
        """Number of times that all servers were asked."""
        self._interval = interval
        self._patterns = dict(patterns)
        self._found = found
        self._known: dict[ServedPattern, frozenset[TableName]] = {}
        self._missing: dict[ServedPattern, frozenset[TableName]] = {}
        self._problems: dict[Endpoint, str] = {}
        self._changed = asyncio.Event()

    def change(self, patterns: Mapping[ServedPattern, str]) -> None:
        """Follow other patterns from now on."""
        self._patterns = dict(patterns)
        self._changed.set()

    @property
    def waiting(self) -> dict[str, str]:
        """The patterns whose server hasn't answered yet: path and reason."""
        return {
            f"{path} ({each.pattern.schema}.{each.pattern.table})": self._problems.get(
                each.endpoint, "its server is asked"
            )
            for each, path in self._patterns.items()
            if each not in self._known
        }

    async def run(self) -> None:
        """Ask now and every few seconds; never returns."""
        while True:
            self._changed.clear()
            await self._ask_all()
            self.rounds += 1
            try:
                await asyncio.wait_for(self._changed.wait(), self._interval)
            except TimeoutError:
                continue

    async def _ask_all(self) -> None:
        before = dict(self._known)
        patterns = list(self._patterns)
        for endpoint in dict.fromkeys(each.endpoint for each in patterns):
            served = await self._ask(endpoint)
            if served is not None:
                for each in patterns:
                    if each.endpoint == endpoint:
                        self._judge(each, served)
        self._known = {each: names for each, names in self._known.items() if each in self._patterns}
        if self._known != before:
            await self._found(self._known)

    async def _ask(self, endpoint: Endpoint) -> frozenset[TableName] | None:
        try:
            served = await served_tables(endpoint)
        except StreamError as error:
            why = str(error)
            if isinstance(error, InvalidRequest):
                why = f"{endpoint.server} is too old for patterns: update it, or list the tables"
            if self._problems.get(endpoint) != why:
                log.warning("server's tables not read; retry scheduled", error=why)
            self._problems[endpoint] = why
            return None
        self._problems.pop(endpoint, None)
        return served

    def _judge(self, each: ServedPattern, served: frozenset[TableName]) -> None:
        now = frozenset(each.pattern.of(served))
        missing = self._known.get(each, now) - now
        gone = missing & self._missing.get(each, frozenset())
        self._missing[each] = missing
        self._known[each] = now | (missing - gone)
