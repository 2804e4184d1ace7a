"""The source's lag over the last hour, for the status page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from laredo_fanout.tables.status import IngestStatus
from laredo_service.http.page import LastHour, LineChart, chart_of, duration, size

_EVERY_S = 1.0
_MIB = 1 << 20
_SIZES = tuple(n * _MIB for n in (1, 4, 16, 64, 256, 1024, 4096, 16384))
_DURATIONS = (10.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0)


class LagHistory:
    """Samples of the lag, in bytes and seconds; absent where PostgreSQL couldn't be asked."""

    def __init__(self, source: Callable[[], IngestStatus]) -> None:
        self._source = source
        self._bytes, self._seconds = LastHour(), LastHour()

    async def run(self) -> None:
        """Take a sample every second until cancelled."""
        while True:
            self.take(time.monotonic())
            await asyncio.sleep(_EVERY_S)

    def take(self, now: float) -> None:
        """Take a sample at ``now``, a monotonic time; none before PostgreSQL was first asked."""
        source = self._source()
        lag = source.known_lag_bytes
        if lag is None and source.error is None:
            return
        self._bytes.add(now, lag)
        self._seconds.add(now, None if lag is None else source.lag_seconds)

    def in_bytes(self) -> LineChart:
        """The chart of WAL that isn't durable here yet."""
        return chart_of(self._bytes, time.monotonic(), _SIZES)

    def in_seconds(self) -> LineChart:
        """The chart of the age of what is durable here."""
        return chart_of(self._seconds, time.monotonic(), _DURATIONS)

    def latest(self) -> tuple[str, str]:
        """The lag now, in bytes and as a duration, for people."""
        source = self._source()
        lag = source.known_lag_bytes
        if lag is None:
            return ("not known", "not known")
        return (size(lag), duration(source.lag_seconds))
