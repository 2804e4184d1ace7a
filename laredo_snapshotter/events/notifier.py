"""The notifier: notifies each sink of each artifact, after its commit: docs/commit-protocol.md, 5.

Every sink has a thread of its own, which sends one notice at a time, in (epoch, position) order,
and retries until the sink takes it. The notices to send are read from the archive's manifest:
nothing is queued. So a sink that is down for days costs no memory, and delays neither commits nor
other sinks.
"""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import structlog

from laredo_archive.failpoint import reach
from laredo_archive.manifest.model import Artifact, EpochPosition
from laredo_archive.manifest.updates import NoticeSource
from laredo_archive.write.table_archive import TableArchive
from laredo_model import position
from laredo_service.retry import Backoff, Outage
from laredo_snapshotter.errors import SinkError
from laredo_snapshotter.events.notices import Notice
from laredo_snapshotter.events.sinks import Sink
from laredo_snapshotter.metrics import TableCounters

log = structlog.get_logger(__name__)

RETRY = Backoff(initial=0.5, maximum=30.0)
SLOW_S = 10.0
"""Time after which a missing answer is reported as trouble."""


class Trouble(NamedTuple):
    """Reason why a sink can't be notified at the moment."""

    problem: str
    since: float
    """Monotonic."""
    attempts: int


class SinkState(NamedTuple):
    """The state of one sink."""

    name: str
    """Its ARN, URL or stream name."""
    outstanding: int
    """Artifacts that it is still to be notified of."""
    missed: int
    """Artifacts that left the manifest before it was notified of them, since the start."""
    last_notified: EpochPosition | None
    """The last artifact's end that it was notified of."""
    last_notified_at: datetime | None
    """Time of the last notice, by our clock; None: none since the start."""
    trouble: Trouble | None
    """Failure of the last attempt, or that the answer to the first is late."""


class Notifier:
    """Notifies one table's sinks. Called from any thread; only settle() waits."""

    def __init__(
        self,
        archive: TableArchive,
        table: str,
        sinks: Sequence[Sink],
        counters: TableCounters,
        retry: Backoff = RETRY,
    ) -> None:
        """``sinks``: those that ``archive`` was opened with."""
        self._archive = archive
        self._changed = threading.Condition()
        self._threads = [
            _SinkThread(
                archive, table, sink, counters=counters, retry=retry, changed=self._notify_settling
            )
            for sink in sinks
        ]
        self._recorded: dict[str, EpochPosition | None] = {}
        self._recorded_at = time.monotonic()

    def start(self) -> None:
        """Start one thread for each sink."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """There may be something to notify of."""
        for thread in self._threads:
            thread.wake()

    def stop(self) -> None:
        """Begin nothing more; what is on its way isn't waited for."""
        for thread in self._threads:
            thread.stop()

    def settle(self, timeout: float) -> bool:
        """Wait until all sinks are notified, or in trouble; at most ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(
                lambda: all(thread.at_rest for thread in self._threads), timeout
            )

    def statuses(self) -> list[SinkState]:
        """The state of every sink."""
        return [thread.status() for thread in self._threads]

    @property
    def unrecorded(self) -> bool:
        """True if sinks were notified of artifacts that no manifest records as notified yet."""
        return any(self._notified().get(sink) != mark for sink, mark in self._sent().items())

    def recording_due(self, idle: float) -> bool:
        """True if sinks were notified, and no commit has recorded it for ``idle`` seconds.

        Call it regularly, always in the same thread.
        """
        now, recorded = time.monotonic(), self._notified()
        if recorded != self._recorded or not self.unrecorded:
            self._recorded, self._recorded_at = recorded, now
            return False
        return now - self._recorded_at >= idle

    def _sent(self) -> dict[str, EpochPosition | None]:
        return self._archive.notices.notified_of

    def _notified(self) -> dict[str, EpochPosition | None]:
        published = self._archive.published
        return dict(published.manifest.notified) if published else {}

    def _notify_settling(self) -> None:
        with self._changed:
            self._changed.notify_all()


class _SinkThread:
    """The thread of one sink. It ends with the process: a sink that hangs holds up no exit."""

    def __init__(
        self,
        archive: TableArchive,
        table: str,
        sink: Sink,
        *,
        counters: TableCounters,
        retry: Backoff,
        changed: Callable[[], None],
    ) -> None:
        self._archive = archive
        self._sink = sink
        self._counters = counters
        counters.sink(sink.name)
        self._retry = retry
        self._changed = changed
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._trouble: Trouble | None = None
        self._outage = Outage()
        self._notified_at: datetime | None = None
        self._sending_since: float | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"{table} to {sink.name}", daemon=True
        )
        self._log = log.bind(table=table, sink=sink.name)

    @property
    def at_rest(self) -> bool:
        """True if no notice is outstanding, or none can be sent now."""
        return self._trouble is not None or self._next() is None

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        self._stopping.set()
        self._woken.set()

    def status(self) -> SinkState:
        published, notices = self._archive.published, self._archive.notices
        name = self._sink.name
        return SinkState(
            name,
            notices.count_outstanding(name, published.manifest) if published else 0,
            notices.missed.get(name, 0),
            notices.notified_of.get(name),
            self._notified_at,
            self._trouble or self._slow(),
        )

    def _slow(self) -> Trouble | None:
        since = self._sending_since
        waited = 0.0 if since is None else time.monotonic() - since
        if since is None or waited < SLOW_S:
            return None
        return Trouble(f"{self._sink.name}: no answer for {waited:.0f} s", since, 0)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._send_next()
            except Exception as failure:  # noqa: BLE001  # one sink's failure leaves the others
                self._stopping.wait(self._note(failure))

    def _send_next(self) -> None:
        """Notify of one artifact; if there is none, wait until woken."""
        # Cleared before the check: a commit that comes after it isn't missed.
        self._woken.clear()
        found = self._next()
        if found is None:
            self._changed()
            # A stop() before the wake-up was cleared doesn't wake it any more.
            if not self._stopping.is_set():
                self._woken.wait()
            return
        artifact, published = found
        reach("notice.sending")
        self._send(Notice.of(artifact, published))
        reach("notice.sent")
        self._note_sent(artifact)

    def _next(self) -> tuple[Artifact, NoticeSource] | None:
        published = self._archive.published
        if published is None:
            return None
        artifact = self._archive.notices.next_for(self._sink.name, published.manifest)
        return None if artifact is None else (artifact, published)

    def _send(self, notice: Notice) -> None:
        self._sending_since = time.monotonic()
        try:
            self._sink.send(notice)
        finally:
            self._sending_since = None

    def _note_sent(self, artifact: Artifact) -> None:
        self._archive.notices.mark_notified(self._sink.name, artifact)
        self._notified_at = datetime.now(UTC)
        self._counters.notice_sent(self._sink.name)
        attempts = self._trouble.attempts if self._trouble is not None else 0
        self._trouble = None
        self._outage.end()
        reach("notice.told")
        self._log.info(
            "sink notified",
            kind=artifact.kind.value,
            epoch=artifact.epoch,
            position=position.text(artifact.to_position),
            failed_attempts=attempts,
        )

    def _note(self, failure: Exception) -> float:
        """Remember ``failure``; the seconds to wait."""
        problem = str(failure) or type(failure).__name__
        before = self._trouble or Trouble("", time.monotonic(), 0)
        self._trouble = Trouble(problem, before.since, before.attempts + 1)
        self._counters.notice_refused(self._sink.name)
        delay = self._retry.delay(self._trouble.attempts)
        cause = failure.cause if isinstance(failure, SinkError) else ""
        news = self._outage.is_news(f"{type(failure).__name__} {cause}")
        level = self._log.warning if news else self._log.debug
        level(
            "sink not notified",
            error=problem,
            kind=type(failure).__name__,
            attempt=self._trouble.attempts,
            retry_in_s=round(delay, 2),
            exc_info=None if isinstance(failure, SinkError) else failure,
        )
        self._changed()
        return delay
