"""The writer's side of compaction: a merged diff takes the place of its parts on every destination.

maintain/compact.py reads and encodes diffs while commits go on; only the change of the manifests
waits for its turn among them.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial

from laredo_archive.manifest import merged as merged_
from laredo_archive.manifest.merged import DiffRun
from laredo_archive.manifest.model import Artifact, Manifest
from laredo_archive.manifest.object_keys import NewNames
from laredo_archive.manifest.updates import Notices
from laredo_archive.write.commit import CommitsInTurn, PendingCommit
from laredo_archive.write.diff_encoding import EncodedDiff, Window
from laredo_archive.write.manifest_store import Claim, ManifestStore
from laredo_archive.write.part_lists import PartsLists
from laredo_model import position as positions
from laredo_model.line import Change
from laredo_model.position import Position


class Merging:
    """Merges runs of diffs of one table's archive, in turn with its commits; from any thread."""

    def __init__(
        self,
        stores: Sequence[ManifestStore],
        owner: Claim,
        commits: CommitsInTurn,
        *,
        notices: Notices,
        new_names: NewNames,
        encoded: Callable[..., EncodedDiff],
        finish: Callable[[], Artifact | None],
    ) -> None:
        """``encoded`` is diff_encoding.encode() with the archive's own arguments filled in.

        ``finish`` adds the unfinished commit to every manifest.
        """
        self.stores = tuple(stores)
        self._claim = owner
        self._commits = commits
        self._notices = notices
        self._new_names = new_names
        self._encoded = encoded
        self._finish = finish
        self.kept_boundary: Position | None = None
        """Position of the base that is being written, whose boundary its commit needs."""

    def next_run(self, levels: Sequence[timedelta]) -> DiffRun | None:
        """The diffs to be merged next; None if none are, or a sink wasn't notified of them yet."""
        manifest = self.stores[0].manifest
        if manifest is None:
            return None
        return merged_.next_run(manifest, levels, until=self._notified_until(manifest))

    def encode(
        self,
        run: DiffRun,
        changes: Iterable[Change],
        *,
        truncate: bool,
        formats: Sequence[str],
    ) -> EncodedDiff:
        """Write ``changes``, which are those of ``run`` net, sorted by key.

        :raises SpoolUnavailable: if there is no room for it.
        """
        first, last = run.diffs[0], run.diffs[-1]
        assert last.rows is not None and last.state_checksum is not None, "runs have states"
        window = Window(
            epoch=first.epoch,
            history=first.history,
            from_position=run.from_position,
            to_position=run.to_position,
            to_time=last.to_time,
            rows=last.rows,
            checksum=last.state_checksum,
            truncate=truncate,
            cancelled=None,
            unchanged_until=first.unchanged_until,
        )
        return self._encoded(
            window,
            changes,
            formats=tuple(dict.fromkeys(formats)),
            columns=run.base.columns or (),
            created_at=self.stores[0].environment.now(),
        )

    def commit(self, run: DiffRun, merged: EncodedDiff) -> bool:
        """Put ``merged`` in the place of ``run`` in every manifest; closes its spool.

        Returns False if the diffs have left the manifest meanwhile.

        :raises CommitUnavailable: if a destination is unavailable; if it was uploaded, the next
            commit finishes it.
        :raises Fenced: if another writer has taken over.
        """
        begun, pending = False, self._pending(merged)
        try:
            with self._commits.turn():
                self._finish()
                if not self._is_there(run, merged.artifact):
                    return False
                seen = [store.current() for store in self.stores]
            # Out of its turn: it may be large, or not fit, and no other commit depends on it.
            with self._commits.reported():
                pending.upload_missing(self.stores, seen)
            with self._commits.turn():
                self._finish()
                begun = self._is_there(run, merged.artifact)
                if begun:
                    self._commits.begin(pending, merged.spool)
                    self._finish()
        finally:
            # Once begun, the commit closes it.
            if not begun:
                merged.spool.close()
        return begun

    def _is_there(self, run: DiffRun, merged: Artifact) -> bool:
        manifest = self.stores[0].manifest
        return manifest is not None and merged_.place_of(manifest, merged) == run.diffs

    def _pending(self, merged: EncodedDiff) -> PendingCommit:
        return PendingCommit(
            merged.artifact,
            merged.contents,
            {},
            self._with_merged,
            self._new_names,
            lists=PartsLists(self._new_names),
        )

    def _with_merged(self, manifest: Manifest, merged: Artifact) -> Manifest:
        return self._notices.entered(merged_.with_merged(manifest, merged))

    def drop_parts(self, keep: timedelta) -> None:
        """Drop the parts of diffs that were merged longer than ``keep`` ago.

        The parts at ``kept_boundary`` stay.

        :raises CommitUnavailable: if a destination is unavailable; call it again.
        :raises Fenced: if another writer has taken over.
        """
        with self._commits.turn():
            self._finish()
            for store in self.stores:
                change = partial(_without_old, store, keep, self.kept_boundary)
                store.rewrite(change, self._claim)

    def _notified_until(self, manifest: Manifest) -> Position | None:
        """End of the newest diff of which every sink was notified; None if there are no sinks."""
        ends = [
            mark.position if mark is not None and mark.epoch == manifest.epoch else positions.ZERO
            for mark in self._notices.notified_of.values()
        ]
        return min(ends, default=None)


def _without_old(
    store: ManifestStore, keep: timedelta, boundary: Position | None, manifest: Manifest
) -> Manifest | None:
    if store.date is None:
        return None
    # By the store's clock: dropped parts don't come back, and the writer's clock may be wrong.
    return merged_.without_parts(manifest, store.date - keep, boundary)
