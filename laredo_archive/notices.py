"""What each sink was told of, so that a restart tells the rest (commit protocol, 5)."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace

from laredo_archive.manifest import Artifact, Manifest, Mark


class Notices:
    """By sink, the newest artifact that it was told of; None: none.

    Thread-safe. What is told goes into the next manifest commit.
    """

    def __init__(self, sinks: Iterable[str], manifests: Sequence[Manifest | None]) -> None:
        """The highest that any of ``manifests`` says of each of ``sinks``."""
        self._lock = threading.Lock()
        self._told: dict[str, Mark | None] = dict.fromkeys(sinks)
        for manifest in manifests:
            for sink, mark in manifest.notified.items() if manifest else ():
                if sink in self._told:
                    self._told[sink] = _later(self._told[sink], mark)

    @property
    def told(self) -> dict[str, Mark | None]:
        """A copy of what is known."""
        with self._lock:
            return dict(self._told)

    def tell(self, sink: str, artifact: Artifact) -> None:
        """``sink`` was told of ``artifact`` and all before it."""
        mark = Mark(artifact.epoch, artifact.to_position)
        with self._lock:
            self._told[sink] = _later(self._told.get(sink), mark)

    def outstanding(self, sink: str, manifest: Manifest) -> list[Artifact]:
        """What ``sink`` is still to be told, in (epoch, position) order."""
        mark = self.told.get(sink)
        return [
            artifact
            for artifact in manifest.artifacts
            if mark is None or (artifact.epoch, artifact.to_position) > mark
        ]

    def entered(self, manifest: Manifest) -> Manifest:
        """``manifest`` with what was told; itself if it says so already."""
        notified = dict(manifest.notified)
        for sink, mark in self.told.items():
            notified[sink] = _later(notified.get(sink), mark)
        return manifest if notified == manifest.notified else replace(manifest, notified=notified)


def _later(one: Mark | None, other: Mark | None) -> Mark | None:
    if one is None or other is None:
        return one or other
    return max(one, other)
