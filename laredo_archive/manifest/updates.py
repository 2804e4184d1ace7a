"""A commit's changes of a manifest: an artifact, a seen position, notified sinks."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from laredo_archive.manifest import rules
from laredo_archive.manifest.merged import compaction
from laredo_archive.manifest.model import Artifact, Manifest
from laredo_archive.manifest.notices import Notices
from laredo_model.position import Position


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
        if manifest.history != base.history:
            manifest = replace(manifest, seen_position=None)
        return self._stamped(rules.with_base(manifest, base, self._keep_epochs))

    def merged(self, manifest: Manifest, merged: Artifact) -> Manifest:
        """The manifest with a merged diff in the place of its parts."""
        return self._notices.entered(compaction.with_merged(manifest, merged))

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
