"""One seeded run: writers in processes of their own, on stores that fail, killed again and again.

    python -m tests.archive.chaos.chaos ENDPOINT SEED...    # one or more runs against an S3 server

What happens is drawn from the seed: which stores, how bad the weather, who is
killed where, who starts while another still writes. In the end the weather is
fair, one writer finishes, and everything is looked at.
"""

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from random import Random

from laredo_archive.maintain.collect import Policy, collect
from laredo_archive.manifest.model import Manifest
from tests.archive.chaos.random_table import STEP, RandomTable
from tests.archive.chaos.random_writer import FENCED, Orders, sweep, write
from tests.support.archive.archiving import PREFIX, TABLE
from tests.support.archive.inspection import (
    assert_nothing_left_over,
    assert_true,
    destination_at,
    manifest_of,
    unfinished,
)
from tests.support.aws import AwsServer
from tests.support.faults.fault import Rule, drop
from tests.support.faults.proxy import FaultProxy
from tests.support.faults.weather import Weather
from tests.support.faults.witness import StoreWitness
from tests.support.processes import PATIENCE_S

KILLED = -9
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.archive.chaos.random_writer"])
AT_ONCE = Policy(cut_off=timedelta(seconds=-1), grace=timedelta(seconds=-1))
LATENESS_S = 0.4
STORM_S = 15
"""Time for a writer: seconds on a machine at rest."""


class Run:
    """A seed's stores and writers."""

    def __init__(self, seed: int, server: AwsServer, directory: Path, stack: ExitStack) -> None:
        self.seed = seed
        self.chance = Random(seed)
        self.proxies: list[FaultProxy] = []
        self._storms: list[tuple[FaultProxy, float]] = []
        self.witnesses: list[StoreWitness] = []
        self.exits: list[int | None] = []
        self._server = server
        self._stack = stack
        self._lives = 0
        self._last = 0
        kinds = self.chance.choice([["s3"], ["s3", "local"], ["s3", "s3"]])
        self.behind = [self._store(kind, directory) for kind in kinds]
        """The stores without their weather."""
        places = [self._through_weather(place) for place in self.behind]
        self._orders = Orders(
            seed,
            "",
            tuple(places),
            0,
            directory,
            formats=self.chance.choice([("jsonl",), ("jsonl", "protobuf")]),
            sinks=("arn:one", "arn:other"),
            keep_epochs=self.chance.choice([None, 2]),
            part_bytes=self.chance.choice([250, 900, 8 << 20]),
        )
        self.directory = directory

    def _store(self, kind: str, directory: Path) -> str:
        if kind == "local":
            return str(directory / "archive")
        return f"s3://{self._server.new_bucket()}/some/where/?endpoint={self._server.endpoint}"

    def _through_weather(self, place: str) -> str:
        uri, query, _ = place.partition("?")
        if not query:
            return place
        proxy = self._stack.enter_context(FaultProxy(self._server.endpoint, self.seed))
        witness = StoreWitness()
        proxy.witnesses.append(witness)
        self._bad_weather(proxy, self.chance.choice([0.03, 0.1, 0.2]))
        self.proxies.append(proxy)
        self.witnesses.append(witness)
        return f"{uri}?endpoint={proxy.endpoint}"

    def go(self) -> None:
        """All of it: three to five scenes.

        :raises AssertionError: naming what was broken.
        """
        scenes = [self._killed_at_a_point, self._killed_at_a_time, self._rivals, self._stores_away]
        collector = self._collector() if self.chance.random() < 0.5 else None
        for _ in range(self.chance.randint(3, 5)):
            self.chance.choice(scenes)()
        if collector is not None:
            assert collector.is_alive(), self._log("collector")
            collector.kill()
            collector.join()
        self._fair_weather()
        final = self._start(self._reach())
        final.join(PATIENCE_S)
        self.exits.append(final.exitcode)
        assert final.exitcode == 0, self._log()
        self.check()

    def _collector(self) -> ForkServerProcess:
        orders = replace(self._orders, life="collector")
        collector = PROCESSES.Process(target=sweep, args=(orders,), daemon=True)
        collector.start()
        return collector

    def _killed_at_a_point(self) -> None:
        point = int(self.chance.expovariate(1 / 60)) + 1
        self._ended(self._start(self._reach(), kill_at=f"*:{point}"))

    def _killed_at_a_time(self) -> None:
        writer = self._start(self._reach())
        writer.join(self.chance.expovariate(2))
        writer.kill()
        self._ended(writer)

    def _stores_away(self) -> None:
        writer = self._start(self._reach())
        for proxy in self.proxies:
            writer.join(self.chance.expovariate(3))
            with proxy.away():
                writer.join(self.chance.uniform(0.1, 0.5))
        self._ended(writer)

    def _rivals(self) -> None:
        last = self._reach()
        writers = []
        for _ in range(self.chance.choice([2, 2, 3])):
            point = int(self.chance.expovariate(1 / 150)) + 1
            writers.append(self._start(last, kill_at=f"*:{point}"))
            time.sleep(self.chance.choice([0, 0.3]) * self.chance.random())
        for writer in writers:
            self._ended(writer)

    def _reach(self) -> int:
        self._last += STEP * self.chance.randint(4, 12)
        return self._last

    def _start(self, last: int, kill_at: str = "") -> ForkServerProcess:
        self._lives += 1
        orders = replace(self._orders, life=f"{self._lives}", last=last, kill_at=kill_at)
        writer = PROCESSES.Process(target=write, args=(orders,))
        writer.start()
        return writer

    def _ended(self, writer: ForkServerProcess) -> None:
        writer.join(STORM_S)
        if writer.is_alive():
            # How long it takes through a storm is luck; once that is over it has to end.
            self._fair_weather()
            writer.join(PATIENCE_S)
            for proxy, how_bad in self._storms:
                self._bad_weather(proxy, how_bad)
        self.exits.append(writer.exitcode)
        assert writer.exitcode in (0, KILLED, FENCED), self._log()

    def _bad_weather(self, proxy: FaultProxy, how_bad: float) -> None:
        proxy.add(Weather(how_bad, lateness=LATENESS_S))
        # One request in many is the commit itself, and what matters most is how it gets lost.
        for lost in (drop(), drop(after=True)):
            proxy.add(Rule(lost, "PutObject", "*manifest.json", times=None, chance=0.1))
        if (proxy, how_bad) not in self._storms:
            self._storms.append((proxy, how_bad))

    def _fair_weather(self) -> None:
        for proxy in self.proxies:
            proxy.clear()
            proxy.settle()

    def _log(self, life: str | None = None) -> str:
        log = self.directory / f"log-{life or self._lives}"
        return f"seed {self.seed}, exits {self.exits}\n{log.read_text()[-6000:]}"

    def check(self) -> None:
        """Everything that must hold when a writer has come to its end."""
        truth = RandomTable(self.seed).at
        for witness in self.witnesses:
            witness.check(truth)
        manifests = []
        for where in self.behind:
            place = destination_at(where)
            manifest = manifest_of(place)
            assert manifest is not None
            assert manifest.head_position is not None
            assert manifest.head_position >= self._last
            assert_true(place, manifest, truth)
            manifests.append(manifest)
        first = manifests[0]
        for other in manifests[1:]:
            assert len(other.artifacts) == len(first.artifacts)
            assert all(map(_same, first.artifacts, other.artifacts)), "the stores aren't level"
        self._check_announcements(first)
        self._check_uploads()
        for where in self.behind:
            _assert_collectable(where)

    def _check_announcements(self, manifest: Manifest) -> None:
        for number, sink in enumerate(self._orders.sinks):
            lines = (self.directory / f"sink-{number}").read_text().splitlines()
            told = [tuple(map(int, line.split()[:2])) for line in lines]
            first_times = list(dict.fromkeys(told))
            assert first_times == sorted(first_times), f"{sink} was told out of order"
            for artifact in manifest.artifacts:
                assert (artifact.epoch, artifact.to_position) in told, f"{sink} wasn't told"
            assert manifest.notified[sink] == manifest.head

    def _check_uploads(self) -> None:
        for where in self.behind:
            assert unfinished(where) == [], f"{where}: uploads that nobody will finish"


def _same(one, other) -> bool:  # type: ignore[no-untyped-def]
    return bool(one.same_as(other) and one.epoch == other.epoch)


def _assert_collectable(where: str) -> None:
    place = destination_at(where)
    for _ in range(3):
        collect(place, TABLE, key_prefix=PREFIX, policy=AT_ONCE)
    manifest = manifest_of(place)
    assert manifest is not None
    assert_nothing_left_over(place, manifest)


@contextmanager
def prepared(seed: int, server: AwsServer, directory: Path) -> Iterator[Run]:
    """A run with its proxies listening."""
    with ExitStack() as stack:
        yield Run(seed, server, directory, stack)


def run(seed: int, server: AwsServer, directory: Path) -> Run:
    """One whole run.

    :raises AssertionError: naming what was broken.
    """
    with prepared(seed, server, directory) as made:
        try:
            made.go()
        except BaseException as failure:
            failure.add_note(f"seed {seed}: its writers ended with {made.exits}")
            raise
        return made


if __name__ == "__main__":
    for argument in sys.argv[2:]:
        with tempfile.TemporaryDirectory() as scratch:
            began = time.monotonic()
            done = run(int(argument), AwsServer(sys.argv[1]), Path(scratch))
            faults = sum(sum(proxy.faults().values()) for proxy in done.proxies)
            took = time.monotonic() - began
            print(f"seed {argument}: {done.exits}, {faults} faults, {took:.1f} s", flush=True)
