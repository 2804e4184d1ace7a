"""An ingest that is held still while its backlog is split."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from laredo_fanout.batch.status import CommitInfo
from tests.support.ingest import RunningIngest
from tests.support.processes import PATIENCE_S
from tests.support.server.behind import status_of


class Held:
    """Holds the ingest after its first commit while a backlog is split (and ``when``)."""

    def __init__(self, ingest: RunningIngest, when: Callable[[], bool] = lambda: True) -> None:
        self._ingest = ingest
        self._when = when
        self.reached = threading.Event()
        self.go_on = threading.Event()
        ingest.on_commit = self._committed

    def _committed(self, _: CommitInfo) -> None:
        if status_of(self._ingest).segments and self._when():
            self.reached.set()
            self.go_on.wait(PATIENCE_S)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """It is held within the block."""
        assert self.reached.wait(PATIENCE_S), "no commit while the backlog was split"
        try:
            yield
        finally:
            self._ingest.on_commit = None
            self.go_on.set()

    def stop(self) -> None:
        """Stop the ingest there, with the plan in its store."""
        with self.holding():
            self._ingest.ingest.stop()
        self._ingest.stop()
