"""The writer's interface to one table's archive on all its destinations (commit protocol).

An artifact is durable once every destination has it. The next one is committed nowhere before that,
so an unfinished commit is finished before anything else.
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Self

from laredo_archive.errors import DestinationError, OutOfOrder
from laredo_archive.failpoint import reach
from laredo_archive.manifest import updates
from laredo_archive.manifest.model import Artifact, Manifest
from laredo_archive.manifest.object_keys import NewNames
from laredo_archive.manifest.updates import Head, ManifestUpdates, Notices, NoticeSource, head_of
from laredo_archive.storage.destination import Destination
from laredo_archive.write.base_upload import Base, BasePlan, BaseUpload
from laredo_archive.write.claim import claim, drop_unfinished, reconcile
from laredo_archive.write.commit import CommitsInTurn, EpochFolders, PendingCommit
from laredo_archive.write.diff_encoding import Window, encode
from laredo_archive.write.manifest_store import Claim, Counts, Environment, ManifestStore
from laredo_archive.write.merging import Merging
from laredo_archive.write.part_lists import with_boundary
from laredo_model import position as positions
from laredo_model.column import Column
from laredo_model.line import Change
from laredo_model.position import History, Position
from laredo_service.log import Log

log = Log(__name__)


class TableArchive:
    """A table's archive on all its destinations, claimed by this writer.

    Every method may be called from any thread; they take turns. Properties never wait, and diffs
    are committed during a base's upload.

    After Fenced it can't be used any more, and its process must not open it again. After
    CommitUnavailable call the same method again, with the same arguments, to continue.
    """

    def __init__(
        self,
        stores: Sequence[ManifestStore],
        owner: Claim,
        table: str,
        key_prefix: str,
        new_names: NewNames,
        *,
        keep_epochs: int | None,
        notices: Notices,
        first: ManifestStore,
        spool_directory: Path | None,
        go_keys: bool,
    ) -> None:
        """Call :meth:`open` instead, which claims the manifests."""
        self._stores = tuple(stores)
        self._first = first
        self.claim = owner
        """This writer's claim: its ``writer_id`` and term."""
        self._table = table
        self._key_prefix = key_prefix
        self.notices = notices
        """The artifacts that each sink was notified of, and the outstanding ones."""
        self._new_names = new_names
        self.counts = stores[0].counts
        """Conflicts and errors so far."""
        self._environment = stores[0].environment
        self._entering = ManifestUpdates(notices, keep_epochs, self._environment.now)
        self._commits = CommitsInTurn(stores, owner, table)
        self._encode = partial(
            encode, table, key_prefix, spool_directory=spool_directory, go_keys=go_keys
        )
        self.merging = Merging(
            stores,
            owner,
            self._commits,
            notices=notices,
            new_names=new_names,
            encoded=self._encode,
            finish=self._finish,
        )
        """Compaction's changes of the manifests."""
        self.manifest: Manifest | None = None
        """The manifest of the first destination, as last committed everywhere."""
        self.published: NoticeSource | None = None
        """The manifest of the destination that was named first, as last committed everywhere."""
        self.head: Head | None = None
        """The archive's head on all destinations; None before the first base."""
        self._take_committed()

    @classmethod
    def open(
        cls,
        destinations: Sequence[Destination],
        table: str,
        *,
        key_prefix: str,
        writer_id: str | None = None,
        keep_epochs: int | None = None,
        sinks: Iterable[str] = (),
        spool_directory: Path | None = None,
        go_keys: bool = False,
        environment: Environment | None = None,
        counts: Counts | None = None,
        check_wanted: Callable[[], None] = lambda: None,
        carry_lost: bool = False,
    ) -> "TableArchive":
        """Claim the table's manifest on every destination, and reconcile the destinations.

        ``writer_id`` defaults to a random one and must be new with every start of the process;
        ``keep_epochs``: None keeps all; ``sinks``: the ARNs or URLs that are notified of artifacts,
        with the URIs of the first of ``destinations``. ``go_keys``: jsonl diffs contain keys as Go
        prints them too. ``check_wanted`` is called before each step that another writer would
        notice, and raises to give the claim up. With ``carry_lost`` an object that the destination
        ahead has lost doesn't keep another one from being filled.

        :raises DestinationUnavailable: if one is unavailable; open it again later.
        :raises ManifestDamaged, ManifestNewer: if one can't be used; none was changed.
        :raises HistoriesDiffer: if they don't hold the same archive.
        :raises ArtifactMissing, ArtifactDamaged: if an object to be copied isn't whole.
        :raises Fenced: if another writer claimed it meanwhile.
        """
        around, counted = environment or Environment(), counts or Counts()
        stores = [
            ManifestStore(destination, table, key_prefix, around, counted)
            for _, destination in sorted({held.location: held for held in destinations}.items())
        ]
        names = tuple(sinks)
        try:
            writer_id = writer_id or secrets.token_hex(8)
            owner = claim(stores, table, writer_id, names, check_wanted)
            for store in stores:
                check_wanted()
                drop_unfinished(store)
            new_names = NewNames(owner.writer_id)
            reconcile(stores, owner, new_names, carry_lost=carry_lost)
        except DestinationError as failure:
            counted.note(failure, stores)
            raise
        archive = cls(
            stores,
            owner,
            table,
            key_prefix,
            new_names,
            keep_epochs=keep_epochs,
            notices=Notices(names, [store.manifest for store in stores]),
            first=next(h for h in stores if h.destination.location == destinations[0].location),
            spool_directory=spool_directory,
            go_keys=go_keys,
        )
        reach("archive.open")
        return archive

    @property
    def heads(self) -> dict[str, Position | None]:
        """The head of each destination's manifest, by location; one may lag by an artifact."""
        return {
            store.destination.location: store.manifest.head_position if store.manifest else None
            for store in self._stores
        }

    @property
    def unfinished(self) -> bool:
        """True if a commit waits for a destination."""
        return self._commits.unfinished

    def snapshot(
        self,
        *,
        position: Position,
        history: History,
        columns: Sequence[Column],
        key_fields: Sequence[str],
        formats: Sequence[str],
    ) -> BaseUpload:
        """Begin the next epoch's base, which is the table at ``position``.

        A context manager; diffs may be committed while it is written. Left without
        finish(), nothing of it remains.

        :raises CommitUnavailable: if a destination is unavailable.
        :raises codec.UnknownFormat: if no codec knows a format.
        """
        with self._commits.turn():
            plan = BasePlan(
                table=self._table,
                key_prefix=self._key_prefix,
                epoch=(self.head.epoch if self.head else 0) + 1,
                position=position,
                history=history,
                columns=tuple(columns),
                key_fields=tuple(key_fields),
                formats=tuple(dict.fromkeys(formats)),
            )
            self.merging.kept_boundary = position
            return BaseUpload(plan, self._stores, self._new_names)

    def commit_base(self, base: Base, *, continues: bool, reason: str | None = None) -> Artifact:
        """Begin a new epoch with ``base``; the diffs after its position become that epoch's.

        ``continues``: no change was missed between the epoch before and this one; then
        an artifact must end at the base's position, with the same rows and checksum.
        ``reason``: why the base doesn't continue. Epochs beyond keep_epochs leave the manifest.

        :raises ChecksumDiffers: if rows or checksum differ; nothing was committed.
        :raises OutOfOrder: if it can't follow the archive's head; nothing was committed.
        :raises ArtifactMissing: if it was deleted meanwhile; make it again.
        :raises ArtifactDamaged: if it, or a list of parts that it takes over, is damaged.
        :raises CommitUnavailable: if a destination is unavailable; call it again.
        :raises Fenced: if another writer has taken over.
        """
        with self._commits.turn():
            self._finish()
            known = updates.known(self.manifest, base.artifact.same_as)
            if known is not None:
                return known
            manifest = self.manifest and with_boundary(
                self._stores[0], self.manifest, base.artifact
            )
            before = updates.before_base(self._table, manifest, base.artifact, continues=continues)
            artifact = replace(
                base.artifact,
                continues=continues,
                reason=reason,
                follows=updates.following(self.manifest.last if self.manifest else None),
                to_time=updates.time_of_base(before, base.artifact.to_time, continues=continues),
            )
            self._commits.begin(
                PendingCommit(
                    artifact,
                    {},
                    base.keys,
                    self._entering.base,
                    self._new_names,
                    folders=EpochFolders(self._new_names),
                )
            )
            committed = self._finish() or artifact
            self.merging.kept_boundary = None
            return committed

    def commit_diff(
        self,
        changes: Iterable[Change],
        *,
        from_position: Position,
        to_position: Position,
        to_time: datetime | None,
        rows: int,
        checksum: str,
        formats: Sequence[str],
        truncate: bool = False,
        cancelled: int | None = None,
        unchanged_until: Position | None = None,
        history: History | None = None,
    ) -> Artifact:
        """Write the net changes over (from, to] and commit them to the current epoch.

        ``changes``: sorted by key, without the TRUNCATE (``truncate``); ``rows`` and
        ``checksum`` describe the table after them; ``cancelled``: number of keys that changed
        without a net change, None if unknown; ``unchanged_until``: the last position at which
        the table is known to be as at ``from_position``, if that is later; ``history``: that of
        ``to_position``, in which the head's position means the same, None: the head's.

        :raises OutOfOrder: if it doesn't begin at the head, or ``history`` can't go on from there.
        :raises SpoolUnavailable: if there is no room to encode it; nothing was committed.
        :raises ArtifactDamaged: if its temporary file is damaged; write it again.
        :raises CommitUnavailable: if a destination is unavailable; call it again.
        :raises Fenced: if another writer has taken over.
        """
        with self._commits.turn():
            self._finish()
            known = updates.known(
                self.manifest,
                lambda artifact: (
                    (artifact.from_position, artifact.to_position) == (from_position, to_position)
                ),
            )
            if known is not None:
                return known
            head = updates.check_diff(self._table, self.head, from_position, to_position, history)
            diff = self._encode(
                Window(
                    epoch=head.epoch,
                    history=history or head.history,
                    from_position=from_position,
                    to_position=to_position,
                    to_time=updates.time_of_diff(head.to_time, to_time),
                    rows=rows,
                    checksum=checksum,
                    truncate=truncate,
                    cancelled=cancelled,
                    unchanged_until=unchanged_until,
                ),
                changes,
                formats=tuple(dict.fromkeys(formats)),
                columns=head.columns or (),
                created_at=self._environment.now(),
            )
            reach("diff.encoded")
            self._commits.begin(
                PendingCommit(
                    diff.artifact, diff.contents, {}, self._entering.diff, self._new_names
                ),
                diff.spool,
            )
            return self._finish() or diff.artifact

    def settle(self) -> None:
        """Finish the commit that waits for a destination, if there is one.

        :raises CommitUnavailable: if it still has to wait.
        :raises Fenced: if another writer has taken over.
        """
        with self._commits.turn():
            self._finish()

    def see(self, position: Position, unchanged_until: Position | None = None) -> None:
        """Raise seen_position: the stream is complete up to ``position``, without a net change.

        ``unchanged_until``: up to there without any change at all. The
        artifacts that sinks were notified of are recorded too.

        :raises OutOfOrder: if ``position`` is before the head, or there is none.
        :raises CommitUnavailable: if a destination is unavailable; nothing depends on it.
        :raises Fenced: if another writer has taken over.
        """
        with self._commits.turn():
            self._finish()
            if self.head is None or position < self.head.position:
                raise OutOfOrder(
                    f"{self._table}: {positions.text(position)} can't be recorded as seen: it is"
                    " before the archive's head"
                )
            for store in self._stores:
                store.rewrite(
                    lambda known: self._entering.seen(known, position, unchanged_until), self.claim
                )
            self._take_committed()

    def record_notices(self) -> None:
        """Record the artifacts that sinks were notified of, when no commit is due.

        :raises CommitUnavailable, Fenced: as :meth:`see`.
        """
        with self._commits.turn():
            self._finish()
            for store in self._stores:
                store.rewrite(self._entering.notified_of, self.claim)
            self._take_committed()

    def close(self) -> None:
        """Delete temporary files. The manifests stay as they are."""
        self._commits.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _finish(self) -> Artifact | None:
        done = self._commits.finish()
        if done is None:
            return None
        self._take_committed()
        log.info(
            "diffs merged" if done.merges else "artifact committed",
            table=self._table,
            kind=done.artifact.kind.value,
            epoch=done.artifact.epoch,
            position=positions.text(done.artifact.to_position),
            size_bytes=done.artifact.size_bytes,
        )
        return done.artifact

    def _take_committed(self) -> None:
        before, self.manifest = self.manifest, self._stores[0].manifest
        self.notices.follow(before, self.manifest)
        shown = self._first.manifest
        self.published = NoticeSource(self._first.uri, shown) if shown else None
        self.head = head_of(self.manifest) if self.manifest else None
