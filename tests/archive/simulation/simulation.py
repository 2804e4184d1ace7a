"""One simulated history of an archive: its actors take turns as the seed says."""

import secrets
from concurrent.futures import Executor, Future
from datetime import timedelta
from typing import Any

import pytest

from laredo_archive.maintain import copy_objects
from laredo_archive.manifest import merged
from laredo_archive.read import artifact_reader, objects
from tests.archive.simulation import checks
from tests.archive.simulation.actors import (
    CUT_OFF_S,
    GRACE_S,
    Collector,
    Copier,
    Nature,
    Reader,
    Scene,
    Writer,
)
from tests.archive.simulation.remembered import remember_manifests
from tests.support.archive.simulated_store import LATEST_S, Faults, MemoryStore
from tests.support.archive.truth import Database
from tests.support.archive.world import Actor, World

LEVELS = tuple(timedelta(seconds=seconds) for seconds in (60, 200, 800))
LISTED_AT_MOST = 4
"""Low, so that parts come into files soon, and files into files."""


def simulate(seed: int) -> Scene:
    """One history; raises with its log if anything that must hold doesn't."""
    world = World(seed)
    try:
        with pytest.MonkeyPatch.context() as patch:
            remember_manifests(patch)
            patch.setattr(merged, "LISTED_AT_MOST", LISTED_AT_MOST)
            patch.setattr(artifact_reader, "opener", objects._AtOnce)
            one_seed_for_all(world, patch)
            # Not drawn: the other seeds' histories stay as they are.
            return _simulate(world, LEVELS if seed % 3 == 1 else ())
    except BaseException as failure:
        history = "\n".join(world.log[-60:])
        failure.add_note(f"seed {seed}; the end of its history:\n{history}")
        raise
    finally:
        world.end()


def one_seed_for_all(world: World, patch: pytest.MonkeyPatch) -> None:
    """Chance and turns that aren't asked of the environment."""

    def token_hex(size: int) -> str:
        return f"{world.chance.getrandbits(8 * size):0{2 * size}x}"

    patch.setattr(secrets, "token_hex", token_hex)
    patch.setattr(copy_objects, "ThreadPoolExecutor", NoThreads)


class NoThreads(Executor):
    """An executor whose work is done as soon as it is submitted."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def submit(self, work: Any, /, *arguments: Any, **more: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments, **more))
        except BaseException as failure:  # noqa: BLE001  # as an executor does
            done.set_exception(failure)
        return done


def _simulate(world: World, levels: tuple[timedelta, ...]) -> Scene:
    scene = _scene(world, levels)
    _troubled_times(scene)
    for store in (*scene.stores, scene.copy):
        store.faults, store.away_until = Faults(), 0.0
    world.crash_probability = 0.0
    world.now += LATEST_S
    _quiet_times(scene)
    return scene


def _scene(world: World, levels: tuple[timedelta, ...]) -> Scene:
    chance = world.chance
    stores = [MemoryStore(world, f"s{index}") for index in range(chance.randint(1, 3))]
    scene = Scene(
        world,
        stores,
        MemoryStore(world, "copy"),
        Database(world),
        keep_epochs=chance.choice([None, 1, 2]),
        formats=chance.choice([("jsonl",), ("jsonl.zst",), ("jsonl", "protobuf")]),
        levels=levels,
    )
    if len(stores) > 1 and chance.random() < 0.5:
        scene.optional = chance.choice(stores)
        scene.without_optional = chance.random() < 0.5
    watch = checks.Watch(scene)
    for store in (*stores, scene.copy):
        store.on_swap, store.on_delete = watch.on_swap, watch.on_delete
    return scene


def _troubled_times(scene: Scene) -> None:
    world, chance = scene.world, scene.world.chance
    bad = chance.choice([0.0, 0.02, 0.08])
    for store in (*scene.stores, scene.copy):
        store.faults = Faults.all(bad)
    world.crash_probability = chance.choice([0.0, 0.003, 0.015])
    world.spawn("nature", lambda actor: Nature(scene, actor, turns=60).run())
    for number in range(chance.randint(1, 6)):
        _start_writer(scene, f"writer {number}", chance.choice([0.0, chance.uniform(0, 600)]))
    for store in (*scene.stores, scene.copy):
        for _ in range(chance.randint(0, 3)):
            world.spawn(
                f"collector of {store.name}",
                lambda actor, store=store: Collector(scene, actor, store, runs=15).run(),
                1.0,
            )
    world.spawn("reader", lambda actor: Reader(scene, actor, reads=6).run())
    for number in range(chance.randint(0, 2)):
        world.spawn(f"copier {number}", lambda a: Copier(scene, a, copies=4).run(), 1.0)
    world.run()


def _start_writer(scene: Scene, name: str, delay: float, restarts: int = 3) -> None:
    """A process that is mostly started again when it is killed, in its recovery too."""
    world, chance = scene.world, scene.world.chance

    def write(actor: Actor) -> None:
        actor.step(delay)
        Writer(scene, actor, turns=chance.randint(2, 25)).run()

    def start_again() -> None:
        if restarts and chance.random() < 0.7:
            _start_writer(scene, f"{name}'", chance.uniform(0, 10), restarts - 1)

    world.spawn(name, write, frailty=1.0, on_killed=start_again)


def _quiet_times(scene: Scene) -> None:
    world = scene.world
    world.spawn("last writer", lambda actor: Writer(scene, actor, turns=3).run())
    world.run()
    checks.no_upload_survived_the_restart(scene)
    checks.level_in_the_end(scene)
    checks.everything_read_back(scene)
    checks.all_told(scene)
    world.spawn("last copier", lambda actor: checks.copied_in_the_end(scene, actor))
    world.run()
    for store in (*scene.stores, scene.copy):
        world.spawn("last collector", lambda actor, store=store: _collect_all(scene, actor, store))
    world.run()
    checks.only_what_is_named(scene)
    checks.everything_read_back(scene)


def _collect_all(scene: Scene, actor: Actor, store: MemoryStore) -> None:
    for _ in range(6):
        actor.step(CUT_OFF_S + GRACE_S + 1)
        Collector(scene, actor, store, runs=1).run()
