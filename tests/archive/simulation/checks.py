"""Invariants at every change of a manifest, and at the end."""

import hashlib

from laredo_archive.maintain.collect import CoveredPositions, file_keys_of
from laredo_archive.manifest import parser, rules
from laredo_archive.manifest.model import Artifact, Manifest
from laredo_model.position import History, Position
from tests.archive.simulation.actors import (
    SINKS,
    Copier,
    Scene,
    in_steps,
    manifest_of,
    named_in_all,
    read_back,
)
from tests.support.archive.archiving import MANIFEST, PREFIX
from tests.support.archive.simulated_store import MemoryStore
from tests.support.archive.truth import checksum_of
from tests.support.archive.world import Actor


class Watch:
    """Looks at every manifest before it takes effect, and at every deletion."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._hashes: dict[bytes, str] = {}
        self._found_true: set[tuple[History, Position, int | None, str | None]] = set()

    def on_swap(self, store: MemoryStore, key: str, before: bytes | None, after: bytes) -> None:
        assert key == MANIFEST
        new = parser.parse(after, store.uri)
        assert list(rules.check(new)) == []
        old = None if before is None else parser.parse(before, store.uri)
        if old is not None:
            self._compare(store, old, new)
        for artifact in new.artifacts:
            folder = f"{PREFIX}epoch={artifact.epoch}/"
            for entry in artifact.formats.values():
                assert entry.key.startswith(folder), f"{entry.uri} is of epoch {artifact.epoch}"
            for each in artifact.with_parts():
                self._whole(store, each)
                self._true(each)
        self._note_sinks(old, new)
        newest = new.last
        self._scene.world.note(
            f"{store.name} rev {new.revision} by {new.writer_id} term {new.writer_term}:"
            f" {len(new.artifacts)} artifacts, {len(new.retired)} retired, last"
            f" {(newest.kind.value, newest.epoch, newest.to_position) if newest else None}"
        )

    def _compare(self, store: MemoryStore, old: Manifest, new: Manifest) -> None:
        assert new.revision > old.revision
        assert new.writer_term >= old.writer_term
        if new.writer_term == old.writer_term:
            assert new.writer_id == old.writer_id
        if old.head is not None and new.history == old.history:
            assert new.head is not None
            assert new.head_position is not None
            assert old.head_position is not None
            assert new.head_position >= old.head_position, f"{store.name}: the head went back"
            assert new.epoch >= old.epoch
        left = old.kept_keys() - named_in_all(store, new)
        assert left <= {entry.key for entry in new.retired}, (
            "an object left the manifest without being retired"
        )

    def _note_sinks(self, old: Manifest | None, new: Manifest) -> None:
        entered = self._scene.entered
        for sink, mark in new.notified.items():
            if mark is not None and (old is None or sink not in old.notified):
                entered[sink] = max(mark, entered.get(sink, mark))

    def _whole(self, store: MemoryStore, artifact: Artifact) -> None:
        for entry in artifact.objects():
            assert entry.uri == store.uri + entry.key
            assert entry.key in store.objects, f"{entry.uri} is named and isn't there"
            data = store.objects[entry.key][0]
            if data not in self._hashes:
                self._hashes[data] = hashlib.sha256(data).hexdigest()
            assert (len(data), self._hashes[data]) == (entry.size_bytes, entry.sha256)

    def _true(self, artifact: Artifact) -> None:
        assert artifact.history is not None
        claim = (artifact.history, artifact.to_position, artifact.rows, artifact.state_checksum)
        if claim in self._found_true:
            return
        self._found_true.add(claim)
        state = self._scene.database.lives[artifact.history].state_at(artifact.to_position)
        checksum = checksum_of(state)
        assert (artifact.rows, artifact.state_checksum) == (checksum.rows, checksum.hex())

    def on_delete(self, store: MemoryStore, key: str) -> None:
        manifest = parser.parse(store.objects[MANIFEST][0], store.uri)
        assert key not in named_in_all(store, manifest), f"{key} deleted, but named"
        assert key in {entry.key for entry in manifest.retired}, f"{key} deleted, but not retired"


def everything_read_back(scene: Scene) -> None:
    """Every store, those that left the configuration too."""
    for store in (*scene.stores, scene.copy):
        manifest = manifest_of(store)
        if manifest is not None:
            read_back(scene, store, manifest)


def no_upload_survived_the_restart(scene: Scene) -> None:
    """Whoever claims an archive drops what those before it had begun."""
    for store in scene.configured():
        assert not store.uploads, f"{store.name}: uploads of writers that are gone"


def level_in_the_end(scene: Scene) -> None:
    """All stores name the same artifacts, up to the database's position."""
    manifests = [existing(store) for store in scene.configured()]
    first = manifests[0]
    assert first.head_position == scene.database.position
    assert first.history == scene.database.history
    for other in manifests[1:]:
        assert len(other.artifacts) == len(first.artifacts)
        assert all(
            one.same_as(two) and one.epoch == two.epoch
            for one, two in zip(first.artifacts, other.artifacts, strict=True)
        )
    if scene.keep_epochs is not None:
        assert len({artifact.epoch for artifact in first.artifacts}) <= scene.keep_epochs


def copied_in_the_end(scene: Scene, actor: Actor) -> None:
    """A copy comes to be what its source is, unless that has forgotten where the copy ends."""
    source = scene.configured()[0]
    known = in_steps(source, existing(source)).artifacts
    boundaries = {(artifact.history, artifact.to_position) for artifact in known}
    before = manifest_of(scene.copy)
    last = before.last if before else None
    if Copier(scene, actor, copies=1).copy(source):
        assert existing(scene.copy).head == existing(source).head
    else:
        assert last is not None
        assert (last.history, last.to_position) not in boundaries


def all_told(scene: Scene) -> None:
    """Every artifact that is still there was announced, but for those before the sink came."""
    manifest = existing(scene.configured()[0])
    for sink in SINKS[: scene.sinks]:
        start = scene.entered.get(sink)
        for artifact in manifest.artifacts:
            place = artifact.epoch, artifact.to_position
            if start is None or place > start:
                assert (sink, artifact.kind, *place) in scene.told
        assert manifest.notified[sink] == manifest.head


def only_what_is_named(scene: Scene) -> None:
    """After cut-off and grace nothing is left that isn't needed."""
    for store in (*scene.stores, scene.copy):
        manifest = manifest_of(store)
        if manifest is not None and manifest.artifacts:
            assert manifest.retired == ()
            left = set(store.objects) - {MANIFEST, *named_in_all(store, manifest)}
            files = CoveredPositions(file_keys_of(manifest), PREFIX)
            assert not [key for key in left if not files.has(key)]
            assert named_in_all(store, manifest) <= set(store.objects)
            epochs = {artifact.epoch for artifact in manifest.artifacts}
            assert {entry.epoch for entry in manifest.former} <= epochs
            assert not store.uploads, "uploads that were begun and never finished"


def existing(store: MemoryStore) -> Manifest:
    """The manifest of a store that must have one."""
    manifest = manifest_of(store)
    assert manifest is not None
    assert manifest.artifacts
    return manifest
