"""A commit's changes of a manifest: the checks of what may follow its head, and the next version.

Each version also records the artifacts that the sinks were notified of by then.
"""

import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from laredo_archive.errors import ChecksumDiffers, OutOfOrder
from laredo_archive.manifest import rules
from laredo_archive.manifest.model import Artifact, EpochPosition, Follows, Manifest
from laredo_model import position as positions
from laredo_model.column import Column
from laredo_model.position import History, Position
from laredo_service.log import Log

log = Log(__name__)


@dataclass(frozen=True)
class Head:
    """The end of the newest epoch; fields that older archives lack are None."""

    #: The newest epoch.
    epoch: int
    #: The newest artifact's to_position.
    position: Position
    #: The history of that position.
    history: History | None
    #: The table's rows there.
    rows: int | None
    #: The table's checksum there.
    checksum: str | None
    #: The epoch's columns.
    columns: tuple[Column, ...] | None
    #: The key's columns.
    key_fields: tuple[str, ...] | None
    to_time: datetime | None
    """PostgreSQL's commit time of the last transaction in the archive."""
    #: The number of the epoch's diffs.
    diffs_since_snapshot: int
    diff_bytes: int
    """Size of the epoch's diffs, each in its largest format."""
    #: The changes of the epoch's diffs.
    diff_changes: int
    #: The base's to_position.
    snapshot_position: Position
    snapshot_bytes: int
    """Size of the epoch's base, in its largest format."""
    snapshot_rows: int
    #: When the base was written.
    snapshot_created_at: datetime
    #: Up to where the archive is known to be complete.
    seen_position: Position | None
    #: When the newest artifact was written.
    committed_at: datetime
    #: When ``seen_position`` was last raised; None: never.
    seen_at: datetime | None


def head_of(manifest: Manifest) -> Head | None:
    """The head of ``manifest``; None if it has no snapshot."""
    diffs: list[Artifact] = []
    for artifact in reversed(manifest.artifacts):
        if artifact.is_snapshot:
            return _head(manifest, artifact, diffs)
        diffs.append(artifact)
    return None


def _head(manifest: Manifest, base: Artifact, diffs: list[Artifact]) -> Head:
    last = manifest.artifacts[-1]
    return Head(
        epoch=last.epoch,
        position=last.to_position,
        history=last.history,
        rows=last.rows,
        checksum=last.state_checksum,
        columns=base.columns,
        key_fields=base.key_fields,
        to_time=last.to_time,
        diffs_since_snapshot=len(diffs),
        diff_bytes=sum(diff.size_bytes for diff in diffs),
        diff_changes=sum(diff.change_count or 0 for diff in diffs),
        snapshot_position=base.to_position,
        snapshot_bytes=base.size_bytes,
        snapshot_rows=base.row_count or 0,
        snapshot_created_at=base.created_at,
        seen_position=manifest.seen_position,
        committed_at=last.created_at,
        seen_at=manifest.seen_at,
    )


# Decides, before a commit, which artifact a base or a diff follows, or refuses it.


def known(manifest: Manifest | None, is_it: Callable[[Artifact], bool]) -> Artifact | None:
    """The newest artifact of the manifest's history, or of its newest epoch, that ``is_it``."""
    if manifest is None:
        return None
    for artifact in reversed(manifest.artifacts):
        of_history = artifact.history == manifest.history or artifact.epoch == manifest.epoch
        if of_history and is_it(artifact):
            return artifact
    return None


def check_diff(
    table: str,
    head: Head | None,
    from_position: Position,
    to_position: Position,
    history: History | None = None,
) -> Head:
    """The head that a diff over (from, to] continues; ``history``: of its end, None: the head's.

    :raises OutOfOrder: if it doesn't begin there, or its history doesn't go on from the head's.
    """
    if head is None or head.position != from_position:
        before = f"one that ends at {positions.text(head.position)}" if head else "an empty one"
        raise OutOfOrder(
            f"{table}: a diff from {positions.text(from_position)} can't continue this archive,"
            f" {before}"
        )
    if not rules.goes_on(head.history, history):
        raise OutOfOrder(f"{table}: history {history} doesn't go on from {head.history}")
    _refuse_going_back(table, head.position, to_position)
    return head


def before_base(
    table: str, manifest: Manifest | None, base: Artifact, *, continues: bool
) -> Artifact | None:
    """The artifact that ``base`` comes after by position: its boundary, if it continues.

    :raises OutOfOrder: if it can't follow.
    :raises ChecksumDiffers: if it isn't the state at its boundary.
    """
    last = manifest.last if manifest else None
    epoch = last.epoch if last else 0
    if base.epoch != epoch + 1:
        raise OutOfOrder(
            f"{table}: a base of epoch {base.epoch} at {positions.text(base.to_position)} can't"
            f" follow epoch {epoch}"
        )
    if continues and manifest is not None and last is not None:
        return _boundary(table, manifest, base)
    if last is not None and last.history == base.history:
        _refuse_going_back(table, last.to_position, base.to_position)
    return last


def _boundary(table: str, manifest: Manifest, base: Artifact) -> Artifact:
    at = positions.text(base.to_position)
    boundary = boundary_at(manifest, base.to_position)
    if boundary is None or boundary.history != base.history:
        raise OutOfOrder(
            f"{table}: no artifact of history {base.history} ends at {at}, so the base there"
            " can't continue the archive"
        )
    if rules.differ(boundary.rows, base.rows) or rules.differ(
        boundary.state_checksum, base.state_checksum
    ):
        raise ChecksumDiffers(table, at, _state(boundary), _state(base))
    return boundary


def boundary_at(manifest: Manifest, position: Position) -> Artifact | None:
    """The newest artifact that ends at ``position`` of the manifest's own history.

    Positions of the histories that the newest epoch went on from mean the same in it.
    """
    for artifact in reversed(manifest.artifacts):
        of_history = artifact.history == manifest.history or artifact.epoch == manifest.epoch
        if artifact.to_position == position and of_history:
            return artifact
    return None


def following(artifact: Artifact | None) -> Follows | None:
    """Reference of a base to ``artifact``, which it follows."""
    if artifact is None:
        return None
    return Follows(
        artifact.epoch,
        artifact.to_position,
        artifact.history,
        artifact.rows,
        artifact.state_checksum,
    )


def time_of_diff(before: datetime | None, time: datetime | None) -> datetime | None:
    """``to_time`` of a diff: never less than that of the artifact before it."""
    if before is None or time is None:
        return before or time
    return max(before, time)


def time_of_base(
    before: Artifact | None, time: datetime | None, *, continues: bool
) -> datetime | None:
    """``to_time`` of a base; one that continues has the time of the diff that ends there."""
    if before is None:
        return time
    return (before.to_time or time) if continues else time_of_diff(before.to_time, time)


def _refuse_going_back(table: str, head: Position, position: Position) -> None:
    if position < head:
        raise OutOfOrder(
            f"{table}: no artifact can end at {positions.text(position)}, which is before the"
            f" archive's head, {positions.text(head)}; does the writer's server lag behind the one"
            " that it followed before?"
        )


def _state(artifact: Artifact) -> str:
    return f"{artifact.rows} rows, checksum {artifact.state_checksum}"


class NoticeSource(NamedTuple):
    """The manifest whose artifacts notices name: that of the first configured destination."""

    manifest_uri: str
    manifest: Manifest


class Notices:
    """The newest artifact that each sink was notified of; None: none.

    Thread-safe. It is recorded in the manifest with the next commit.
    """

    def __init__(self, sinks: Iterable[str], manifests: Sequence[Manifest | None]) -> None:
        """Start from the highest that any of ``manifests`` has for each of ``sinks``."""
        self._lock = threading.Lock()
        self._notified_of: dict[str, EpochPosition | None] = dict.fromkeys(sinks)
        self._missed = Counter(dict.fromkeys(self._notified_of, 0))
        for manifest in manifests:
            for sink, mark in manifest.notified.items() if manifest else ():
                if sink in self._notified_of:
                    self._notified_of[sink] = later(self._notified_of[sink], mark)

    @property
    def notified_of(self) -> dict[str, EpochPosition | None]:
        """The newest artifact that each sink was notified of; a copy."""
        with self._lock:
            return dict(self._notified_of)

    @property
    def missed(self) -> dict[str, int]:
        """By sink, the number of artifacts that left the manifest before its notification."""
        with self._lock:
            return dict(self._missed)

    def mark_notified(self, sink: str, artifact: Artifact) -> None:
        """Record that ``sink`` was notified of ``artifact`` and all before it."""
        with self._lock:
            self._notified_of[sink] = later(self._notified_of.get(sink), _mark_of(artifact))

    def outstanding(self, sink: str, manifest: Manifest) -> list[Artifact]:
        """The artifacts that ``sink`` is still to be notified of, in (epoch, position) order."""
        return list(manifest.artifacts[self._first(sink, manifest) :])

    def count_outstanding(self, sink: str, manifest: Manifest) -> int:
        """The number of outstanding artifacts of ``sink``, found by binary search."""
        return len(manifest.artifacts) - self._first(sink, manifest)

    def next_for(self, sink: str, manifest: Manifest) -> Artifact | None:
        """The first outstanding artifact of ``sink``, found by binary search."""
        first = self._first(sink, manifest)
        return manifest.artifacts[first] if first < len(manifest.artifacts) else None

    def entered(self, manifest: Manifest) -> Manifest:
        """``manifest`` with the artifacts that sinks were notified of; itself if it has them."""
        notified = dict(manifest.notified)
        for sink, mark in self.notified_of.items():
            notified[sink] = later(notified.get(sink), mark)
        return manifest if notified == manifest.notified else replace(manifest, notified=notified)

    def follow(self, before: Manifest | None, after: Manifest | None) -> None:
        """Count artifacts that left from ``before`` to ``after`` before a sink was notified.

        Retention doesn't wait for a sink: only artifacts still in the manifest are notified.
        """
        if before is None or after is None or _oldest_epoch(before) >= _oldest_epoch(after):
            return
        kept = {_identity(artifact) for artifact in after.artifacts}
        for sink in self.notified_of:
            gone = [a for a in self.outstanding(sink, before) if _identity(a) not in kept]
            if gone:
                self._miss(sink, before.table, gone)

    def _miss(self, sink: str, table: str, gone: Sequence[Artifact]) -> None:
        with self._lock:
            self._missed[sink] += len(gone)
        log.warning(
            "artifacts dropped from the manifest before the sink was notified",
            table=table,
            sink=sink,
            artifacts=len(gone),
            epochs=sorted({artifact.epoch for artifact in gone}),
            advice=(
                "the sink continues with the remaining artifacts; repair the sink, or raise"
                " retention.keep_epochs"
            ),
        )

    def _first(self, sink: str, manifest: Manifest) -> int:
        with self._lock:
            mark = self._notified_of.get(sink)
        return 0 if mark is None else bisect_right(manifest.artifacts, mark, key=_mark_of)


def _mark_of(artifact: Artifact) -> EpochPosition:
    return EpochPosition(artifact.epoch, artifact.to_position)


def _oldest_epoch(manifest: Manifest) -> int:
    return manifest.artifacts[0].epoch if manifest.artifacts else 0


def _identity(artifact: Artifact) -> tuple[object, ...]:
    """Identity of an artifact; a diff keeps it when a re-base puts it in another epoch."""
    epoch = artifact.epoch if artifact.is_snapshot else None
    return artifact.kind, epoch, artifact.history, artifact.from_position, artifact.to_position


def later(one: EpochPosition | None, other: EpochPosition | None) -> EpochPosition | None:
    """The later of two points."""
    if one is None or other is None:
        return one or other
    return max(one, other)


class ManifestUpdates:
    """Makes the next version of a manifest; each records the sinks' notices by then."""

    def __init__(
        self, notices: Notices, keep_epochs: int | None, now: Callable[[], datetime]
    ) -> None:
        """``keep_epochs``: None keeps all."""
        self._notices = notices
        self._keep_epochs = keep_epochs
        self._now = now

    def diff(self, manifest: Manifest, diff: Artifact) -> Manifest:
        """The manifest with a diff at its end.

        :raises OutOfOrder: if the diff doesn't begin there.
        """
        _refuse_moved(manifest, manifest.head == (diff.epoch, diff.from_position), diff)
        return self._stamped(_with_artifacts(manifest, (*manifest.artifacts, diff)))

    def base(self, manifest: Manifest, base: Artifact) -> Manifest:
        """The manifest with a new epoch; those beyond keep_epochs leave.

        :raises OutOfOrder: if it isn't the next epoch.
        """
        _refuse_moved(manifest, base.epoch == manifest.epoch + 1, base)
        if manifest.history != base.history and not base.continues:
            manifest = replace(manifest, seen_position=None)
        return self._stamped(with_base(manifest, base, self._keep_epochs))

    def seen(
        self, manifest: Manifest, position: Position, unchanged_until: Position | None
    ) -> Manifest | None:
        """The manifest with a seen position; None if nothing would change."""
        if manifest.seen_position is not None and manifest.seen_position >= position:
            return self.notified_of(manifest)
        seen = with_seen(manifest, position, self._now())
        return self._notices.entered(with_unchanged(seen, unchanged_until))

    def notified_of(self, manifest: Manifest) -> Manifest | None:
        """The manifest with the notified artifacts; None if nothing would change."""
        entered = self._notices.entered(manifest)
        return None if entered is manifest else entered

    def _stamped(self, manifest: Manifest) -> Manifest:
        head = manifest.head_position
        assert head is not None, "it has an artifact"
        return self._notices.entered(with_seen(manifest, head, self._now()))


def _refuse_moved(manifest: Manifest, follows: bool, artifact: Artifact) -> None:
    # The swap of a commit that was given up may take effect later, under the same claim.
    if follows:
        return
    head = manifest.head
    ends = f"ends at {positions.text(head.position)} of epoch {head.epoch}" if head else "is empty"
    raise OutOfOrder(
        f"{manifest.table}: the manifest has changed, and {ends} now, so the"
        f" {artifact.kind.value} to {positions.text(artifact.to_position)} of epoch"
        f" {artifact.epoch} can't follow; open the archive again"
    )


def with_base(manifest: Manifest, base: Artifact, keep_epochs: int | None) -> Manifest:
    """The manifest with a new epoch's base; the diffs after it become that epoch's.

    All epochs but the newest ``keep_epochs`` (None: no limit) leave into ``retired``.
    """
    after = [artifact.relabelled(base.epoch) for artifact in taken_over(manifest, base)]
    before = [artifact for artifact in manifest.artifacts if not _is_taken_over(artifact, base)]
    oldest = 0 if keep_epochs is None else base.epoch - keep_epochs + 1
    kept = [artifact for artifact in before if artifact.epoch >= oldest]
    leaving = [artifact for artifact in before if artifact.epoch < oldest]
    manifest = _with_artifacts(manifest, (*kept, base, *after))
    manifest = rules.with_retired(manifest, (entry for gone in leaving for entry in gone.objects()))
    return rules.with_former(manifest, manifest.former, oldest)


def taken_over(manifest: Manifest, base: Artifact) -> list[Artifact]:
    """The diffs that become those of ``base``, with the epoch that they have."""
    return [artifact for artifact in manifest.artifacts if _is_taken_over(artifact, base)]


def _is_taken_over(artifact: Artifact, base: Artifact) -> bool:
    return (
        artifact.from_position is not None
        and artifact.from_position >= base.to_position
        and (base.continues or artifact.history == base.history)
        and artifact.epoch == base.epoch - 1
    )


def _with_artifacts(manifest: Manifest, artifacts: tuple[Artifact, ...]) -> Manifest:
    last = artifacts[-1]
    same_head = (last.to_position, last.history) == (manifest.head_position, manifest.history)
    return replace(
        manifest,
        artifacts=artifacts,
        epoch=last.epoch,
        head_position=last.to_position,
        history=last.history,
        unchanged_until=manifest.unchanged_until if same_head else None,
    )


def with_dates(manifest: Manifest, shown: Manifest, date: datetime) -> Manifest:
    """``manifest`` with ``date`` for the retired that ``shown`` had without one.

    ``date``: the store's, of the answer that showed the version ``shown``.
    """
    undated = {entry.key for entry in shown.retired if entry.at is None}
    if not undated:
        return manifest
    dated = tuple(
        replace(entry, at=date) if entry.at is None and entry.key in undated else entry
        for entry in manifest.retired
    )
    return replace(manifest, retired=dated)


def with_seen(manifest: Manifest, position: Position, now: datetime) -> Manifest:
    """The manifest with ``seen_position`` raised; within a history it never goes back."""
    before = manifest.seen_position
    if before is not None and before > position:
        position = before
    return replace(manifest, seen_position=position, seen_at=now)


def with_unchanged(manifest: Manifest, until: Position | None) -> Manifest:
    """The manifest whose table is known to stay as at its head up to ``until``, if it is later."""
    head = manifest.head_position
    if until is None or head is None or until <= max(head, manifest.unchanged_until or head):
        return manifest
    return replace(manifest, unchanged_until=until)
