"""A writer's commits to one table, one after the other: each is finished before the next begins."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import structlog

from laredo_archive.errors import ArtifactMissing, CommitUnavailable, DestinationError, Fenced
from laredo_archive.failpoint import reach
from laredo_archive.manifest.model import Artifact
from laredo_archive.write.diff_spool import DiffSpool
from laredo_archive.write.manifest_store import Claim, ManifestStore
from laredo_archive.write.pending_commit import PendingCommit
from laredo_model import position as positions

log = structlog.get_logger(__name__)


class CommitsInTurn:
    """At most one commit is unfinished: it waits for a destination that was unavailable."""

    def __init__(self, stores: Sequence[ManifestStore], claim: Claim, table: str) -> None:
        self._stores = tuple(stores)
        self._claim = claim
        self._table = table
        self._turn = threading.RLock()
        self._fenced: Fenced | None = None
        self._pending: PendingCommit | None = None
        self._spool: DiffSpool | None = None

    @property
    def unfinished(self) -> bool:
        """True if a commit waits for a destination."""
        return self._pending is not None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the lock on commits for the block, and finish an unfinished one first.

        :raises Fenced: if another writer has taken over, now or earlier.
        :raises CommitUnavailable: if a destination is unavailable.
        """
        with self._turn:
            if self._fenced is not None:
                raise self._fenced
            try:
                yield
            except Fenced as fenced:
                self._fenced = fenced
                self._drop()
                log.error(
                    "archive taken over by another writer", table=self._table, reason=str(fenced)
                )
                raise
            except DestinationError as failure:
                location = self._stores[0].counts.note(failure, self._stores)
                log.warning("commit delayed", table=self._table, reason=str(failure))
                raise CommitUnavailable(self._table, failure.uri, failure, location) from failure

    def begin(self, commit: PendingCommit, spool: DiffSpool | None = None) -> None:
        """Have ``commit`` finished next, and ``spool`` closed then."""
        self._pending, self._spool = commit, spool

    def finish(self) -> Artifact | None:
        """Bring the unfinished commit, if there is one, into every manifest."""
        pending = self._pending
        if pending is None:
            return None
        try:
            pending.upload_missing(self._stores)
            pending.commit(self._stores, self._claim)
        except ArtifactMissing:
            if not pending.begun:
                self._drop()
            raise
        reach("commit.done")
        self._drop()
        log.info(
            "diffs merged" if pending.merges else "artifact committed",
            table=self._table,
            kind=pending.artifact.kind.value,
            epoch=pending.artifact.epoch,
            position=positions.text(pending.artifact.to_position),
        )
        return pending.artifact

    def close(self) -> None:
        """Delete temporary files."""
        with self._turn:
            self._drop()

    def _drop(self) -> None:
        self._pending = None
        if self._spool is not None:
            self._spool.close()
            self._spool = None
