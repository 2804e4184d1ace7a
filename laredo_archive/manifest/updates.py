"""What a commit does to a manifest: an artifact, a seen position, what sinks were told."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from laredo_archive.manifest import rules
from laredo_archive.manifest.model import Artifact, Manifest
from laredo_archive.manifest.notices import Notices
from laredo_model.position import Position


class ManifestUpdates:
    """Makes the next version of a manifest; every one says what sinks were told by then."""

    def __init__(
        self, notices: Notices, keep_epochs: int | None, now: Callable[[], datetime]
    ) -> None:
        """``keep_epochs``: None keeps all."""
        self._notices = notices
        self._keep_epochs = keep_epochs
        self._now = now

    def diff(self, manifest: Manifest, diff: Artifact) -> Manifest:
        """With a diff at its end."""
        return self._stamped(rules.with_diff(manifest, diff))

    def base(self, manifest: Manifest, base: Artifact) -> Manifest:
        """With a new epoch; those beyond keep_epochs leave."""
        if manifest.history != base.history:
            manifest = replace(manifest, seen_position=None)
        return self._stamped(rules.with_base(manifest, base, self._keep_epochs))

    def seen(self, manifest: Manifest, position: Position) -> Manifest | None:
        """With a seen position; None if that, and all that was told, is there already."""
        if manifest.seen_position is not None and manifest.seen_position >= position:
            return self.told(manifest)
        return self._notices.entered(rules.with_seen(manifest, position, self._now()))

    def told(self, manifest: Manifest) -> Manifest | None:
        """With what sinks were told; None if it says so already."""
        entered = self._notices.entered(manifest)
        return None if entered is manifest else entered

    def _stamped(self, manifest: Manifest) -> Manifest:
        head = manifest.head_position
        assert head is not None, "it has an artifact"
        return self._notices.entered(rules.with_seen(manifest, head, self._now()))
