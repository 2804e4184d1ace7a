"""A table's chain of artifacts, for the status page: epochs, each a base and its diffs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from laredo_archive.manifest.model import Artifact, Manifest
from laredo_model import position as position_

MAX_EPOCHS = 5
"""The newest ones are shown; an archive may keep hundreds."""
MAX_DIFFS = 12


@dataclass(frozen=True)
class ChainLink:
    """One artifact."""

    #: Where it ends, as PostgreSQL writes positions.
    position: str
    created_at: datetime
    size_bytes: int
    #: A base's rows, a diff's changes; None: not recorded.
    number: int | None
    formats: str


@dataclass(frozen=True)
class ShownEpoch:
    """A base and the diffs after it."""

    number: int
    #: None where it isn't kept any more.
    base: ChainLink | None
    #: The newest diffs, oldest first.
    diffs: tuple[ChainLink, ...]
    #: Of all of its diffs.
    diff_count: int
    diff_bytes: int
    #: Why the base doesn't continue the epoch before; None if it does.
    reason: str | None


@dataclass(frozen=True)
class ArtifactChain:
    """The newest epochs, newest first, and how many there are."""

    epochs: tuple[ShownEpoch, ...]
    epoch_count: int
    artifact_count: int


class ArtifactChains:
    """The chains of the tables; one is made again only when its manifest has changed."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Manifest, ArtifactChain]] = {}

    def of(self, table: str, manifest: Manifest | None) -> ArtifactChain | None:
        """The chain of ``table``; None before its archive is claimed."""
        if manifest is None:
            return None
        made = self._made.get(table)
        if made is None or made[0] is not manifest:
            made = self._made[table] = (manifest, chain_of(manifest))
        return made[1]


def chain_of(manifest: Manifest) -> ArtifactChain:
    """The chain of all that ``manifest`` lists."""
    numbers = {artifact.epoch for artifact in manifest.artifacts}
    return ArtifactChain(
        epochs=tuple(_newest(manifest)),
        epoch_count=len(numbers),
        artifact_count=len(manifest.artifacts),
    )


def _newest(manifest: Manifest) -> Iterator[ShownEpoch]:
    """The newest epochs; the manifest's artifacts are in order."""
    epoch: ShownEpoch | None = None
    yielded = 0
    for artifact in reversed(manifest.artifacts):
        if epoch is not None and artifact.epoch != epoch.number:
            yield epoch
            epoch, yielded = None, yielded + 1
            if yielded == MAX_EPOCHS:
                return
        epoch = _with(epoch or ShownEpoch(artifact.epoch, None, (), 0, 0, None), artifact)
    if epoch is not None:
        yield epoch


def _with(epoch: ShownEpoch, artifact: Artifact) -> ShownEpoch:
    """The epoch with an older artifact of it."""
    link = ChainLink(
        position=position_.text(artifact.to_position),
        created_at=artifact.created_at,
        size_bytes=artifact.size_bytes,
        number=artifact.row_count if artifact.is_snapshot else artifact.change_count,
        formats=", ".join(artifact.formats),
    )
    if artifact.is_snapshot:
        return replace(epoch, base=link, reason=artifact.reason)
    shown = epoch.diffs if len(epoch.diffs) == MAX_DIFFS else (link, *epoch.diffs)
    return replace(
        epoch,
        diffs=shown,
        diff_count=epoch.diff_count + 1,
        diff_bytes=epoch.diff_bytes + artifact.size_bytes,
    )
