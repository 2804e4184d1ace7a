"""Actors of the simulation: writers, collectors, readers, the database, the weather."""

import io
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import BinaryIO, TypeVar

from laredo_archive import codec
from laredo_archive.errors import (
    ArchiveMissing,
    ArtifactDamaged,
    ArtifactMissing,
    CommitUnavailable,
    CopyRefused,
    CopyStopped,
    DestinationError,
    DestinationUnavailable,
    Fenced,
    HistoriesDiffer,
    ManifestLost,
    NotCollectable,
)
from laredo_archive.maintain.collect import Policy, collect
from laredo_archive.maintain.compact import merge_next
from laredo_archive.maintain.copy import CopyTarget, _Copy
from laredo_archive.manifest import merged as merged_
from laredo_archive.manifest import parser
from laredo_archive.manifest.merged import PartsFiles
from laredo_archive.manifest.model import Artifact, EpochPosition, Manifest
from laredo_archive.read.location import FoundArchive, as_it_is, read_manifest
from laredo_archive.read.objects import UNWATCHED
from laredo_archive.write.manifest_store import Environment
from laredo_archive.write.table_archive import TableArchive
from laredo_model.line import Action
from laredo_model.position import Position
from tests.support.archive.archiving import MANIFEST, PREFIX, TABLE, Stillness
from tests.support.archive.simulated_store import MemoryDestination, MemoryStore
from tests.support.archive.truth import COLUMNS, Database, State, checksum_of, net_changes
from tests.support.archive.world import Actor, World

T = TypeVar("T")

RECOVERY_FRAILTY = 6.0
KEEP_PARTS = timedelta(seconds=300)
CUT_OFF_S, GRACE_S, LONGEST_READ_S = 20.0, 120.0, 100.0
SINKS = ("arn:sink", "arn:added")
"""The second one comes into the configuration some time, or never."""


@dataclass
class Scene:
    """State that the actors share."""

    world: World
    stores: Sequence[MemoryStore]
    copy: MemoryStore
    """Store for copies of archives; no writer writes there."""
    database: Database
    keep_epochs: int | None
    formats: tuple[str, ...]
    levels: tuple[timedelta, ...] = ()
    """Levels of merging; none if diffs aren't merged."""
    optional: MemoryStore | None = None
    """Comes into the configuration and leaves it again."""
    without_optional: bool = False
    sinks: int = 1
    told: set[tuple[str, str, int, Position]] = field(default_factory=set)
    entered: dict[str, EpochPosition] = field(default_factory=dict)
    """Position from which an added sink is notified."""
    happened: Counter[str] = field(default_factory=Counter)

    def configured(self) -> list[MemoryStore]:
        """The stores of whoever starts now."""
        return [
            store for store in self.stores if not (self.without_optional and store is self.optional)
        ]

    def fill_anew(self, why: HistoriesDiffer) -> None:
        """The operator does what the message says."""
        gone = self.optional
        assert gone is not None, why
        assert gone.uri in str(why), why
        self.world.note(f"{gone.name} is emptied: {why}")
        self.happened["emptied"] += 1
        gone.objects.clear()
        gone.uploads.clear()


class Writer:
    """Model of laredo-snapshotter's use of an archive."""

    def __init__(self, scene: Scene, actor: Actor, *, turns: int) -> None:
        self._scene = scene
        self._actor = actor
        self._chance = scene.world.chance
        self._turns = turns
        self._stores = scene.configured()
        self._sinks = SINKS[: scene.sinks]
        self._idle_updates = self._chance.random() < 0.3
        skew = timedelta(hours=self._chance.uniform(-48, 48))
        self._around = Environment(
            now=lambda: scene.world.date + skew,
            pause=actor.step,
            chance=random.Random(self._chance.random()),
            at_once=actor.at_once,
        )

    def run(self) -> None:
        try:
            with self._recovered() as archive:
                for _ in range(self._turns):
                    self._actor.step(self._chance.uniform(0, 25))
                    self._one_turn(archive)
                self._catch_up(archive)
        except (Fenced, ManifestLost) as end:
            self._scene.happened[type(end).__name__] += 1
            self._scene.world.note(f"{self._actor.name} ends: {end}")

    def _recovered(self) -> TableArchive:
        """Open the archive after a crash; another crash is likelier during that."""
        self._actor.frailty *= RECOVERY_FRAILTY
        archive = self._open()
        self._actor.frailty /= RECOVERY_FRAILTY
        return archive

    def _open(self) -> TableArchive:
        scene = self._scene
        while True:
            try:
                return TableArchive.open(
                    [MemoryDestination(store, self._actor) for store in self._stores],
                    TABLE,
                    key_prefix=PREFIX,
                    writer_id=f"{self._chance.getrandbits(64):016x}",
                    keep_epochs=scene.keep_epochs,
                    sinks=self._sinks,
                    environment=self._around,
                )
            except HistoriesDiffer as why:
                scene.fill_anew(why)
            except DestinationUnavailable:
                self._actor.step(self._chance.uniform(1, 20))

    def _retry(self, call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except CommitUnavailable:
                self._actor.step(self._chance.uniform(1, 20))

    def _one_turn(self, archive: TableArchive) -> None:
        if not self._continues(archive):
            self._base(archive, continues=False)
            return
        draw = self._chance.random()
        # Where diffs are merged, bases are rare.
        diffs = 0.75 if self._scene.levels else 0.6
        if draw < diffs:
            self._diff(archive, self._some_position(archive))
        elif draw < 0.8:
            self._base(archive, continues=True)
        elif draw < 0.9:
            self._retry(lambda: self._see(archive))
        self._notify(archive)
        self._compact(archive)

    def _compact(self, archive: TableArchive) -> None:
        for _ in range(self._chance.randint(0, 3) if self._scene.levels else 0):
            self._actor.step(self._chance.uniform(0, 25))
            if self._continues(archive):
                self._diff(archive, self._some_position(archive))
                self._notify(archive)
        levels, formats = self._scene.levels, self._scene.formats
        while levels and self._chance.random() < 0.8:
            try:
                merged = self._retry(lambda: merge_next(archive.merging, levels, formats=formats))
            except DestinationUnavailable as away:
                self._scene.world.note(f"{self._actor.name} merges nothing: {away}")
                break
            if merged is None:
                break
            self._scene.happened["merges"] += 1
        if levels and self._chance.random() < 0.1:
            self._retry(lambda: archive.merging.drop_parts(KEEP_PARTS))

    def _catch_up(self, archive: TableArchive) -> None:
        if not self._continues(archive):
            self._base(archive, continues=False)
        self._diff(archive, self._scene.database.position)
        self._notify(archive, patience=1.0)
        self._retry(archive.record_notices)

    def _continues(self, archive: TableArchive) -> bool:
        head, database = archive.head, self._scene.database
        return (
            head is not None
            and head.history == database.history
            and head.position >= database.floor
        )

    def _some_position(self, archive: TableArchive) -> Position:
        """A commit after the head, or any position after it up to which the stream is complete."""
        head = archive.head
        assert head is not None
        positions = [p for p in self._scene.database.life.positions if p > head.position]
        return self._chance.choice(positions) if positions else head.position

    def _diff(self, archive: TableArchive, end: Position) -> None:
        head = archive.head
        assert head is not None
        if end <= head.position or head.history != self._scene.database.history:
            return
        life = self._scene.database.lives[head.history]
        changes, truncate = net_changes(life, head.position, end, idle=self._idle_updates)
        state = checksum_of(life.state_at(end))
        self._retry(
            lambda: archive.commit_diff(
                iter(changes),
                from_position=head.position,
                to_position=end,
                to_time=None,
                rows=state.rows,
                checksum=state.hex(),
                formats=self._scene.formats,
                truncate=truncate,
            )
        )
        self._scene.happened["commits"] += 1

    def _base(self, archive: TableArchive, *, continues: bool) -> None:
        database = self._scene.database
        life, position = database.life, database.position
        if continues:
            position = self._some_position(archive)
            self._diff(archive, position)
        while True:
            try:
                with archive.snapshot(
                    position=position,
                    history=life.history,
                    columns=COLUMNS,
                    key_fields=["id"],
                    formats=self._scene.formats,
                ) as upload:
                    for key, line in sorted(life.state_at(position).items()):
                        self._actor.step(self._chance.expovariate(10))
                        upload.write([key], [line])
                    base = upload.finish(None)
                for _ in range(self._chance.randint(0, 2) if continues else 0):
                    if database.life is life:
                        self._diff(archive, self._some_position(archive))
                if self._chance.random() < 0.1:
                    self._actor.step(self._chance.uniform(0, CUT_OFF_S + 3 * GRACE_S))
                self._retry(partial(archive.commit_base, base, continues=continues))
            except (CommitUnavailable, ArtifactMissing):
                self._actor.step(self._chance.uniform(1, 20))
            else:
                self._scene.happened["commits"] += 1
                return

    def _see(self, archive: TableArchive) -> None:
        head = archive.head
        assert head is not None
        unchanged = [
            position
            for position in self._scene.database.lives[head.history].positions
            if position >= head.position
        ]
        state = self._scene.database.lives[head.history].state_at
        if all(state(position) == state(head.position) for position in unchanged):
            archive.see(unchanged[-1] if unchanged else head.position)

    def _notify(self, archive: TableArchive, patience: float = 0.9) -> None:
        for sink in self._sinks:
            self._notify_one(archive, sink, patience)

    def _notify_one(self, archive: TableArchive, sink: str, patience: float) -> None:
        manifest = archive.manifest
        assert manifest is not None
        for artifact in archive.notices.outstanding(sink, manifest):
            if self._chance.random() > patience:
                return
            self._actor.step(self._chance.expovariate(10))
            self._scene.told.add((sink, artifact.kind, artifact.epoch, artifact.to_position))
            if self._chance.random() > patience:
                return
            archive.notices.mark_notified(sink, artifact)


class Collector:
    """The garbage collector of one store, which runs now and then."""

    def __init__(self, scene: Scene, actor: Actor, store: MemoryStore, *, runs: int) -> None:
        self._scene = scene
        self._actor = actor
        self._store = store
        self._runs = runs

    def run(self) -> None:
        chance = self._scene.world.chance
        for run in range(self._runs):
            self._actor.step(chance.uniform(5, 100))
            # Some take for an orphan what was uploaded a moment ago: a commit must bear that.
            at_once = run % 3 == 2 and self._store is not self._scene.copy
            cut_off = timedelta(seconds=-CUT_OFF_S if at_once else CUT_OFF_S)
            try:
                collect(
                    MemoryDestination(self._store, self._actor),
                    TABLE,
                    key_prefix=PREFIX,
                    policy=Policy(cut_off, timedelta(seconds=GRACE_S)),
                    environment=Environment(
                        now=lambda: self._scene.world.date,
                        pause=self._actor.step,
                        chance=random.Random(chance.random()),
                    ),
                )
            except (DestinationUnavailable, NotCollectable) as failure:
                self._scene.world.note(f"{self._actor.name}: {failure}")


class Reader:
    """Reads an epoch slowly, from a manifest that it read before, and compares."""

    def __init__(self, scene: Scene, actor: Actor, *, reads: int) -> None:
        self._scene = scene
        self._actor = actor
        self._reads = reads

    def run(self) -> None:
        chance = self._scene.world.chance
        for _ in range(self._reads):
            self._actor.step(chance.uniform(10, 300))
            store = chance.choice(self._scene.stores)
            manifest = manifest_of(store)
            if manifest is None or not manifest.artifacts:
                continue
            if self._scene.levels and chance.random() < 0.5:
                manifest = in_steps(store, manifest)
            epoch = chance.choice(manifest.artifacts).epoch
            artifacts = [artifact for artifact in manifest.artifacts if artifact.epoch == epoch]
            self._read(store, artifacts[: chance.randint(1, len(artifacts))])

    def _read(self, store: MemoryStore, artifacts: list[Artifact]) -> None:
        state: State = {}
        pause = LONGEST_READ_S / len(artifacts)
        for artifact in artifacts:
            self._actor.step(self._scene.world.chance.uniform(0, pause))
            format_id = self._scene.world.chance.choice(sorted(artifact.formats))
            state = read_into(state, store, artifact, format_id)
        last = artifacts[-1]
        assert last.history is not None
        expected = self._scene.database.lives[last.history].state_at(last.to_position)
        assert state == expected, f"{store.uri}: not the table at {last.to_position:X}"
        self._scene.happened["reads"] += 1


class Copier:
    """``laredo-archive copy`` to one and the same place, now and then, and slowly."""

    def __init__(self, scene: Scene, actor: Actor, *, copies: int) -> None:
        self._scene = scene
        self._actor = actor
        self._copies = copies
        self._chance = scene.world.chance

    def run(self) -> None:
        for _ in range(self._copies):
            self._actor.step(self._chance.uniform(10, 400))
            self.copy(self._chance.choice(self._scene.stores))

    def copy(self, store: MemoryStore) -> bool:
        """Copy the archive; True if the copy was completed."""
        scene = self._scene
        slow = SlowDestination(store, self._actor, self._chance.choice([0.0, 30.0, 200.0]))
        target = CopyTarget(MemoryDestination(scene.copy, self._actor), PREFIX)
        try:
            source = FoundArchive(slow, MANIFEST, read_manifest(slow, MANIFEST), as_it_is)
            around = Environment(
                now=lambda: scene.world.date,
                pause=self._actor.step,
                chance=random.Random(self._chance.random()),
            )
            _Copy(source, target, False, UNWATCHED, around).run()
        except (ArchiveMissing, CopyRefused, CopyStopped, DestinationError) as failure:
            scene.world.note(f"{self._actor.name}: {failure}")
            gone = isinstance(failure.__cause__, ArtifactMissing | ArtifactDamaged)
            assert not gone, f"it is planned anew: {failure}"
            return False
        scene.happened["copies"] += 1
        return True


class SlowDestination(MemoryDestination):
    """A store that is read over a slow line."""

    def __init__(self, store: MemoryStore, actor: Actor, pause: float) -> None:
        super().__init__(store, actor)
        self._pause = pause

    def open(self, key: str, offset: int = 0) -> BinaryIO:
        self._actor.step(self._chance.uniform(0, self._pause))
        return super().open(key, offset)


def manifest_of(store: MemoryStore) -> Manifest | None:
    """As it is now."""
    found = store.objects.get(MANIFEST)
    return parser.parse(found[0], store.uri) if found else None


class Inspected(MemoryDestination):
    """A store that is read past its faults, and at no time."""

    def open(self, key: str, offset: int = 0) -> BinaryIO:
        return io.BytesIO(self._store.objects[key][0][offset:])


def in_steps(store: MemoryStore, manifest: Manifest) -> Manifest:
    """With the parts of merged diffs in their places, all levels down."""
    parts = PartsFiles(Inspected(store, Stillness(store.world)), str, PREFIX)
    return merged_.unfolded(manifest, merged_.everywhere, parts.diffs_of)


def named_in_all(store: MemoryStore, manifest: Manifest) -> set[str]:
    """Every object that the manifest names, or a file of parts that it names, and so on."""
    parts = PartsFiles(Inspected(store, Stillness(store.world)), str, PREFIX)
    named, left = manifest.kept_keys(), list(manifest.artifacts)
    for artifact in left:
        if artifact.parts is not None:
            left += parts.diffs_of(artifact)
        named |= {entry.key for entry in artifact.objects()}
    return named


def read_back(scene: Scene, store: MemoryStore, manifest: Manifest) -> None:
    """Every boundary, by folding, in every format."""
    for format_id in scene.formats:
        for version in (manifest, in_steps(store, manifest)):
            _read_chain(scene, store, version, format_id)


def _read_chain(scene: Scene, store: MemoryStore, manifest: Manifest, format_id: str) -> None:
    state: State = {}
    for artifact in manifest.artifacts:
        state = read_into(state, store, artifact, format_id)
        assert artifact.history is not None
        life = scene.database.lives[artifact.history]
        assert state == life.state_at(artifact.to_position)


def read_into(state: State, store: MemoryStore, artifact: Artifact, format_id: str) -> State:
    """The state after ``artifact``."""
    key = artifact.formats[format_id].key
    assert key in store.objects, f"{store.uri}{key} is named by a manifest and gone"
    data = io.BytesIO(store.objects[key][0])
    if artifact.is_snapshot:
        rows = codec.read_snapshot(format_id, COLUMNS, data)
        return {key: line for keys, lines in rows for key, line in zip(keys, lines, strict=True)}
    for change in codec.read_diff(format_id, COLUMNS, data):
        if change.action is Action.TRUNCATE:
            state = {}
        elif change.new is None:
            assert state.pop(change.key) == change.old
        else:
            assert state.get(change.key) == change.old
            state[change.key] = change.new
    return state


class Nature:
    """Commits, forgets, fails over; takes stores away for a while."""

    def __init__(self, scene: Scene, actor: Actor, *, turns: int) -> None:
        self._scene = scene
        self._actor = actor
        self._turns = turns

    def run(self) -> None:
        world, database = self._scene.world, self._scene.database
        interval = world.chance.choice([8, 30, 100])
        for _ in range(self._turns):
            self._actor.step(world.chance.expovariate(1 / interval))
            draw = world.chance.random()
            if draw < 0.02:
                database.forget()
            elif draw < 0.04:
                database.fail_over()
            elif draw < 0.1:
                self._take_away(world.chance.choice([200.0, 200.0, 200.0, 2000.0]))
            elif draw < 0.14:
                self._configure()
            else:
                database.commit()

    def _take_away(self, longest: float) -> None:
        world = self._scene.world
        store = world.chance.choice(self._scene.stores)
        store.away_until = world.now + world.chance.uniform(0, longest)
        world.note(f"{store.name} away until {store.away_until:.0f}")

    def _configure(self) -> None:
        """For whoever starts from now on."""
        scene = self._scene
        if scene.world.chance.random() < 0.3:
            scene.sinks = len(SINKS)
        elif scene.optional is not None:
            scene.without_optional = not scene.without_optional
            where = "leaves" if scene.without_optional else "comes into"
            scene.world.note(f"{scene.optional.name} {where} the configuration")
