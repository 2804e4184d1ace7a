"""What must hold at every change of a manifest, and what must hold in the end."""

import hashlib

from laredo_archive import chain, manifest_parser
from laredo_archive.manifest import Artifact, Manifest
from laredo_model.history import History
from laredo_model.position import Position
from tests.archive.simulation.actors import MANIFEST, SINK, Scene, read_into
from tests.archive.simulation.store import MemoryStore
from tests.archive.simulation.truth import State, checksum_of


class Watch:
    """Looks at every manifest before it takes effect, and at every deletion."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._hashes: dict[bytes, str] = {}
        self._found_true: set[tuple[History, Position, int | None, str | None]] = set()

    def on_swap(self, store: MemoryStore, key: str, before: bytes | None, after: bytes) -> None:
        assert key == MANIFEST
        new = manifest_parser.parse(after, store.uri)
        assert list(chain.check(new)) == []
        if before is not None:
            self._compare(store, manifest_parser.parse(before, store.uri), new)
        for artifact in new.artifacts:
            self._whole(store, artifact)
            self._true(artifact)
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
        named = {entry.key for entry in new.named()}
        left = {entry.key for entry in old.named()} - named
        assert left <= new.retired_keys(), "an object left the manifest without being retired"

    def _whole(self, store: MemoryStore, artifact: Artifact) -> None:
        for entry in artifact.formats.values():
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
        manifest = manifest_parser.parse(store.objects[MANIFEST][0], store.uri)
        assert key not in {entry.key for entry in manifest.named()}, f"{key} deleted, but named"
        assert key in manifest.retired_keys(), f"{key} deleted, but not retired"


def everything_read_back(scene: Scene) -> None:
    """Every boundary of every store, by folding, in every format."""
    for store in scene.stores:
        manifest = manifest_parser.parse(store.objects[MANIFEST][0], store.uri)
        assert manifest.artifacts
        for format_id in scene.formats:
            state: State = {}
            for artifact in manifest.artifacts:
                state = read_into(state, store, artifact, format_id)
                assert artifact.history is not None
                life = scene.database.lives[artifact.history]
                assert state == life.state_at(artifact.to_position)


def level_in_the_end(scene: Scene) -> None:
    """All stores name the same artifacts, up to the database's position."""
    manifests = [manifest_parser.parse(s.objects[MANIFEST][0], s.uri) for s in scene.stores]
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


def all_told(scene: Scene) -> None:
    """Every artifact that is still there was announced, but for those before the sink came."""
    manifest = manifest_parser.parse(scene.stores[0].objects[MANIFEST][0], "")
    for artifact in manifest.artifacts:
        assert (artifact.kind, artifact.epoch, artifact.to_position) in scene.told
    assert manifest.notified[SINK] == manifest.head


def only_what_is_named(scene: Scene) -> None:
    """After cut-off and grace nothing is left that isn't needed."""
    for store in scene.stores:
        manifest = manifest_parser.parse(store.objects[MANIFEST][0], store.uri)
        assert manifest.retired == ()
        assert set(store.objects) == {MANIFEST, *(entry.key for entry in manifest.named())}
