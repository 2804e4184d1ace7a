"""Changes of a manifest by a commit, and the artifacts that each sink was notified of."""

import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

import structlog

from laredo_archive.manifest import merged as merged_
from laredo_archive.manifest import rules
from laredo_archive.manifest.model import Artifact, EpochPosition, Manifest
from laredo_model.position import Position

log = structlog.get_logger(__name__)


class NoticeSource(NamedTuple):
    """The manifest whose artifacts notices name: that of the first configured destination."""

    #: The manifest's URI.
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
        """The number of outstanding artifacts of ``sink``; costs next to nothing."""
        return len(manifest.artifacts) - self._first(sink, manifest)

    def next_for(self, sink: str, manifest: Manifest) -> Artifact | None:
        """The first outstanding artifact of ``sink``; costs next to nothing."""
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


# A commit's changes of a manifest: an artifact, a seen position, notified sinks.


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
        """The manifest with a diff at its end."""
        return self._stamped(rules.with_diff(manifest, diff))

    def base(self, manifest: Manifest, base: Artifact) -> Manifest:
        """The manifest with a new epoch; those beyond keep_epochs leave."""
        if manifest.history != base.history and not base.continues:
            manifest = replace(manifest, seen_position=None)
        return self._stamped(rules.with_base(manifest, base, self._keep_epochs))

    def merged(self, manifest: Manifest, merged: Artifact) -> Manifest:
        """The manifest with a merged diff in the place of its parts."""
        return self._notices.entered(merged_.with_merged(manifest, merged))

    def seen(
        self, manifest: Manifest, position: Position, unchanged_until: Position | None
    ) -> Manifest | None:
        """The manifest with a seen position; None if nothing would change."""
        if manifest.seen_position is not None and manifest.seen_position >= position:
            return self.notified_of(manifest)
        seen = rules.with_seen(manifest, position, self._now())
        return self._notices.entered(rules.with_unchanged(seen, unchanged_until))

    def notified_of(self, manifest: Manifest) -> Manifest | None:
        """The manifest with the notified artifacts; None if nothing would change."""
        entered = self._notices.entered(manifest)
        return None if entered is manifest else entered

    def _stamped(self, manifest: Manifest) -> Manifest:
        head = manifest.head_position
        assert head is not None, "it has an artifact"
        return self._notices.entered(rules.with_seen(manifest, head, self._now()))
