"""What each sink was told of, so that a restart tells the rest (commit protocol, 5)."""

import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import structlog

from laredo_archive.manifest.model import Artifact, EpochPosition, Manifest

log = structlog.get_logger(__name__)


class Published(NamedTuple):
    """What notices tell of: the manifest of the destination that was named first, and where."""

    manifest_uri: str
    manifest: Manifest


class Notices:
    """By sink, the newest artifact that it was told of; None: none.

    Thread-safe. What is told goes into the next manifest commit.
    """

    def __init__(self, sinks: Iterable[str], manifests: Sequence[Manifest | None]) -> None:
        """The highest that any of ``manifests`` says of each of ``sinks``."""
        self._lock = threading.Lock()
        self._told: dict[str, EpochPosition | None] = dict.fromkeys(sinks)
        self._missed = Counter(dict.fromkeys(self._told, 0))
        for manifest in manifests:
            for sink, mark in manifest.notified.items() if manifest else ():
                if sink in self._told:
                    self._told[sink] = later(self._told[sink], mark)

    @property
    def told(self) -> dict[str, EpochPosition | None]:
        """A copy of what is known."""
        with self._lock:
            return dict(self._told)

    @property
    def missed(self) -> dict[str, int]:
        """By sink, how many artifacts left the manifest since the start without it being told."""
        with self._lock:
            return dict(self._missed)

    def tell(self, sink: str, artifact: Artifact) -> None:
        """``sink`` was told of ``artifact`` and all before it."""
        with self._lock:
            self._told[sink] = later(self._told.get(sink), _mark_of(artifact))

    def outstanding(self, sink: str, manifest: Manifest) -> list[Artifact]:
        """What ``sink`` is still to be told, in (epoch, position) order."""
        return list(manifest.artifacts[self._first(sink, manifest) :])

    def count_outstanding(self, sink: str, manifest: Manifest) -> int:
        """How many artifacts ``sink`` is still to be told of; costs next to nothing."""
        return len(manifest.artifacts) - self._first(sink, manifest)

    def next_for(self, sink: str, manifest: Manifest) -> Artifact | None:
        """The first that ``sink`` is still to be told of; costs next to nothing."""
        first = self._first(sink, manifest)
        return manifest.artifacts[first] if first < len(manifest.artifacts) else None

    def entered(self, manifest: Manifest) -> Manifest:
        """``manifest`` with what was told; itself if it says so already."""
        notified = dict(manifest.notified)
        for sink, mark in self.told.items():
            notified[sink] = later(notified.get(sink), mark)
        return manifest if notified == manifest.notified else replace(manifest, notified=notified)

    def follow(self, before: Manifest | None, after: Manifest | None) -> None:
        """Note what left with the change from ``before`` to ``after`` that a sink wasn't told of.

        Only what is still in the manifest is told: retention doesn't wait for a sink.
        """
        if before is None or after is None or _oldest_epoch(before) >= _oldest_epoch(after):
            return
        kept = {_identity(artifact) for artifact in after.artifacts}
        for sink in self.told:
            gone = [a for a in self.outstanding(sink, before) if _identity(a) not in kept]
            if gone:
                self._miss(sink, before.table, gone)

    def _miss(self, sink: str, table: str, gone: Sequence[Artifact]) -> None:
        with self._lock:
            self._missed[sink] += len(gone)
        log.warning(
            "artifacts left the manifest before the sink was told of them",
            table=table,
            sink=sink,
            artifacts=len(gone),
            epochs=sorted({artifact.epoch for artifact in gone}),
            advice="it goes on with what is there; mend the sink, or raise retention.keep_epochs",
        )

    def _first(self, sink: str, manifest: Manifest) -> int:
        with self._lock:
            mark = self._told.get(sink)
        return 0 if mark is None else bisect_right(manifest.artifacts, mark, key=_mark_of)


def _mark_of(artifact: Artifact) -> EpochPosition:
    return EpochPosition(artifact.epoch, artifact.to_position)


def _oldest_epoch(manifest: Manifest) -> int:
    return manifest.artifacts[0].epoch if manifest.artifacts else 0


def _identity(artifact: Artifact) -> tuple[object, ...]:
    """The same for a diff in whatever epoch a re-base put it."""
    epoch = artifact.epoch if artifact.is_snapshot else None
    return artifact.kind, epoch, artifact.history, artifact.from_position, artifact.to_position


def later(one: EpochPosition | None, other: EpochPosition | None) -> EpochPosition | None:
    """The one that goes further."""
    if one is None or other is None:
        return one or other
    return max(one, other)
