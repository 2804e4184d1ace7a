"""One seeded run of the whole programs, in which everything goes wrong that can.

PostgreSQL with random transactions, laredo-fanout, laredo-snapshotter; S3 and the
sinks behind fault proxies, a directory beside them. From the seed come the
weather, who is killed when or at which failpoint, which stores are away, and
when a second writer starts beside the first. In the end the weather is fair, one
writer finishes, and everything is looked at.
"""

import random
import sys
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

from laredo_archive import failpoint
from laredo_archive.maintain.collect import Policy, collect
from laredo_archive.maintain.verify import verify
from laredo_archive.manifest import parser, rules
from laredo_archive.manifest.catalog import CATALOG
from laredo_archive.manifest.model import Artifact, Manifest
from laredo_archive.manifest.object_keys import manifest_key
from laredo_archive.reader import Archive
from laredo_archive.storage.access import S3Access
from laredo_archive.storage.s3.destination import HIDDEN
from laredo_model import position as positions
from tests.end_to_end.fanout import fanout
from tests.end_to_end.workload import TABLES, Table, Writer, begun
from tests.support.archive.inspection import destination_at
from tests.support.aws import AwsServer
from tests.support.faults.fault import Rule, drop
from tests.support.faults.proxy import FaultProxy
from tests.support.faults.weather import Weather
from tests.support.faults.witness import StoreWitness
from tests.support.oracle import Oracle, assert_same, boundaries
from tests.support.postgres import Database
from tests.support.processes import Program, free_port, wait_until
from tests.support.writer.buckets import new_bucket
from tests.support.writer.listening import EARS, Ear

SNAPSHOTTER = """
snapshotter {{
  source {{ server = "127.0.0.1:{grpc_port}" }}
  diff {{ interval = 250ms }}, seen_interval = 500ms
  snapshot {{ min_interval = 500ms, max_churn_records = 150, max_interval = 4s }}
  destinations = [ {destinations} ]
  events = [ {events} ]
  formats {{ snapshot = [jsonl, protobuf], diff = [jsonl], compression = {compression} }}
  compaction {{ levels = [600ms, 2s] }}
  retention {{ keep_epochs = {keep_epochs}, collect_interval = 1s, cut_off = 60s, grace = 2s }}
  http {{ host = "127.0.0.1", port = {http_port} }}
  tables = [ {tables} ]
}}
"""
LATENESS_S = 0.5
"""Shorter than the grace period; the cut-off is longer than a base takes on a busy machine."""

AT_ONCE = Policy(cut_off=timedelta(seconds=-1), grace=timedelta(seconds=-1))
LONGEST_LIFE_S = 10


class Stores:
    """Destinations and sinks: the real ends, and the faulty ways to them."""

    def __init__(
        self, chance: random.Random, server: AwsServer, directory: Path, stack: ExitStack
    ) -> None:
        self.bucket = new_bucket(server)
        self.directory = directory / "archive"
        self.witness = StoreWitness()
        self.store = stack.enter_context(FaultProxy(server.endpoint, chance.getrandbits(32)))
        self.store.witnesses.append(self.witness)
        self.told = stack.enter_context(FaultProxy(server.endpoint, chance.getrandbits(32)))
        self.ears: list[Ear] = [EARS[kind](server) for kind in ("sqs", "sns", "kinesis")]
        self._rates = chance.choice([0.05, 0.1, 0.2]), chance.choice([0.05, 0.2])

    @property
    def places(self) -> list[str]:
        """Both, past the weather."""
        return [f"{self.bucket.uri}?endpoint={self.bucket.server.endpoint}", str(self.directory)]

    def destinations(self) -> str:
        """For the writer's configuration."""
        s3 = self.bucket.configured(endpoint=f'"{self.store.endpoint}"')
        return f'{s3}, {{ type = local, path = "{self.directory}" }}'

    def events(self) -> str:
        """For the writer's configuration."""
        blocks = []
        for ear in self.ears:
            said = ear.config.model_dump(exclude_none=True) | {"endpoint": self.told.endpoint}
            pairs = ", ".join(f'{name} = "{value}"' for name, value in said.items())
            blocks.append(f"{{ {pairs} }}")
        return ", ".join(blocks)

    def bad_weather(self) -> None:
        """From now on requests meet faults."""
        store, told = self._rates
        self.store.add(Weather(store, lateness=LATENESS_S))
        # One request in many is the commit itself, and what matters most is how it gets lost.
        for lost in (drop(), drop(after=True)):
            self.store.add(Rule(lost, "PutObject", "*manifest.json", times=None, chance=0.1))
        self.told.add(Weather(told, lateness=LATENESS_S))

    def fair_weather(self) -> None:
        """From now on none does, and none is under way."""
        for proxy in (self.store, self.told):
            proxy.clear()
            proxy.settle()


class Run:
    """A seed's database, programs and stores."""

    def __init__(
        self, seed: int, database: Database, server: AwsServer, directory: Path, stack: ExitStack
    ) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.stores = Stores(self.chance, server, directory, stack)
        self.history: list[str] = []
        """Actions of the run, for the report of a failure."""
        self._database = database
        self._directory = directory
        self._stack = stack
        self._keep_epochs = self.chance.choice([2, 50])
        served = fanout(directory, database)
        self.server, self._grpc_port = served.program, served.grpc_port
        self.writers = [self._writer("first"), self._writer("second")]

    def _writer(self, name: str) -> Program:
        http_port = free_port()
        config = self._directory / f"{name}.conf"
        config.write_text(
            SNAPSHOTTER.format(
                grpc_port=self._grpc_port,
                http_port=http_port,
                keep_epochs=self._keep_epochs,
                compression=("none", "zstd")[self.seed % 2],
                destinations=self.stores.destinations(),
                events=self.stores.events(),
                tables=", ".join(
                    f"{{ source {{ schema = public, table = {table.name} }} }}" for table in TABLES
                ),
            )
        )
        log = self._directory / f"{name}.log"
        writer = Program("laredo-snapshotter", config, http_port, log=log)
        writer.wrapper = (sys.executable, "-m", "tests.support.archive.small_parts")
        return writer

    def go(self, scenes: int) -> None:
        """Let ``scenes`` things go wrong, then end.

        :raises AssertionError: naming what was broken.
        """
        oracle = begun(self._database)
        self._stack.callback(oracle.close)
        clients = [
            Writer(self._database.dsn, table, oracle, self.seed + number, pause=0.05)
            for number, table in enumerate(TABLES)
        ]
        for client in clients:
            client.start()
        self.server.start()
        self._stack.callback(self._end_all)
        try:
            self.stores.bad_weather()
            self._chaos(scenes)
        finally:
            for client in clients:
                client.finish()
        self._last_writer(oracle.last_commit())
        self._check(oracle)

    # What goes wrong.

    def _chaos(self, count: int) -> None:
        self._start(self.writers[0])
        scenes = [
            self._writer_killed,
            self._writer_killed_at_a_point,
            self._writer_killed_at_a_point,
            self._server_killed,
            self._rivals,
            self._rivals,
            self._stores_away,
        ]
        # Both programs are killed in every run.
        for scene in (
            self._server_killed,
            self._writer_killed,
            *self.chance.choices(scenes, k=count),
        ):
            self._live()
            scene()

    def _live(self) -> None:
        """For as long as some requests take: not by the clock, since machines differ."""
        wanted = len(self.stores.store.log) + self.chance.choice([20, 100]) * self.chance.random()
        until = time.monotonic() + LONGEST_LIFE_S
        while len(self.stores.store.log) < wanted and time.monotonic() < until:
            time.sleep(0.02)  # poll

    def _start(self, writer: Program, kill_at: str = "") -> None:
        self.history.append(f"{writer.log.stem} starts {kill_at}")
        writer.environment = {failpoint.VARIABLE: kill_at}
        writer.start()

    def _kill(self, program: Program) -> None:
        self.history.append(f"{program.log.stem} killed")
        program.kill()

    def _writer_killed(self) -> None:
        self._kill(self.writers[0])
        self._start(self.writers[0])

    def _writer_killed_at_a_point(self) -> None:
        self._kill(self.writers[0])
        point = int(self.chance.expovariate(1 / 100)) + 1
        self._start(self.writers[0], kill_at=f"*:{point}")
        until = time.monotonic() + LONGEST_LIFE_S
        while self.writers[0].is_running() and time.monotonic() < until:
            time.sleep(0.02)  # poll
        self._writer_killed()

    def _server_killed(self) -> None:
        self._kill(self.server)
        self.server.start()

    def _rivals(self) -> None:
        """A second one starts; later one of the two is killed, not always the older."""
        self._start(self.writers[1])
        self._live()
        if self.chance.random() < 0.7:
            self.writers.reverse()
        self._kill(self.writers[1])

    def _stores_away(self) -> None:
        proxy = self.chance.choice([self.stores.store, self.stores.told])
        self.history.append("a proxy away")
        with proxy.away():
            time.sleep(self.chance.random())  # how long is what is random here

    def _end_all(self) -> None:
        for program in (*self.writers, self.server):
            if program.is_running():
                program.kill()

    # How it ends.

    def _last_writer(self, last: int) -> None:
        """One that nothing disturbs, until everything is in the archive and told."""
        for writer in self.writers:
            if writer.is_running():
                writer.kill()
        self.stores.fair_weather()
        if not self.server.is_running():
            self.server.start()
        self._start(self.writers[0])
        self._wait(lambda: all(self._reaches(table, last) for table in TABLES), "its last commit")
        self._wait(lambda: all(map(self._has_told_all, TABLES)), "all sinks told")
        # Until it stops, uploads of its own may be under way.
        assert self.writers[0].stop() == 0, self.writers[0].tail()
        # What a probe left that was killed goes with a probe of an hour later.
        left = [key for key in self.stores.bucket.unfinished() if not key.startswith(HIDDEN)]
        sent = [str(seen) for seen in self.stores.store.log if seen.operation.key in left]
        assert not left, f"uploads that nobody will finish: {left}; {sent}"
        assert self.server.stop() == 0, self.server.tail()

    def _wait(self, condition: Any, what: str) -> None:
        try:
            wait_until(condition, what)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.writers[0].tail()}") from None

    def _reaches(self, table: Table, last: int) -> bool:
        manifests = self._manifests(table)
        return len(manifests) == len(self.stores.places) and all(
            max(manifest.head_position or 0, manifest.seen_position or 0) >= last
            and manifest.artifacts
            for manifest in manifests
        )

    def _manifests(self, table: Table) -> list[Manifest]:
        found = []
        for place in self.stores.places:
            read = destination_at(place).get(manifest_key(f"{table.name}/"))
            if read is not None:
                found.append(parser.parse(read.data, place))
        return found

    def _has_told_all(self, table: Table) -> bool:
        manifests = self._manifests(table)
        return all(
            mark == manifest.head for manifest in manifests for mark in manifest.notified.values()
        )

    # What must be true.

    def _check(self, oracle: Oracle) -> None:
        self.stores.witness.check()
        assert len(self.stores.witness.manifests) == len(TABLES)
        for table in TABLES:
            manifests = self._manifests(table)
            for manifest in manifests:
                assert list(rules.check(manifest)) == []
            bucket, directory = (list(map(_content, known.artifacts)) for known in manifests)
            assert bucket == directory, f"{table.name}: the destinations aren't level"
            self._check_rows(oracle, table)
            self._check_notices(table, manifests[0])
            self._verify(table)
        for place in self.stores.places:
            self._check_garbage(place)

    def _check_rows(self, oracle: Oracle, table: Table) -> None:
        seen = set()
        for archive in (self.stores.bucket, self.stores.directory):
            for position, lines in boundaries(archive / table.name, table.key_fields):
                state = position, tuple(sorted(lines))
                if state not in seen:
                    assert_same(oracle, table.name, position, lines)
                    seen.add(state)

    def _check_notices(self, table: Table, manifest: Manifest) -> None:
        wanted = [_mark(artifact) for artifact in manifest.artifacts]
        for ear in self.stores.ears:
            told = [
                (heard.body["epoch"], positions.parse(heard.body["to_position"]))
                for heard in ear.hear()
                if heard.body["table"] == f"public.{table.name}"
            ]
            first_times = list(dict.fromkeys(told))
            assert first_times == sorted(first_times), f"{ear.config.name}: out of order"
            missing = set(wanted) - set(told)
            assert not missing, f"{ear.config.name} was never told of {missing}"

    def _verify(self, table: Table) -> None:
        access = S3Access(endpoint=self.stores.bucket.server.endpoint, addressing="path")
        for archive in (self.stores.bucket.uri, f"{self.stores.directory}/"):
            report = verify(Archive.at(f"{archive}{table.name}", access=access))
            assert report.sound, report.problems

    def _check_garbage(self, place: str) -> None:
        """A collector that may take everything at once leaves what is named and no more."""
        destination = destination_at(place)
        kept = set()
        for table in TABLES:
            for _ in range(3):
                collect(
                    destination,
                    f"public.{table.name}",
                    key_prefix=f"{table.name}/",
                    policy=AT_ONCE,
                )
            key = manifest_key(f"{table.name}/")
            found = destination.get(key)
            assert found is not None
            manifest = parser.parse(found.data, place)
            assert manifest.retired == ()
            for artifact in manifest.artifacts:
                folder = f"{table.name}/epoch={artifact.epoch}/"
                assert all(key.startswith(folder) for key in artifact.keys), artifact
            kept |= {key, *manifest.kept_keys()}
        assert {info.key for info in destination.list("")} == kept | {CATALOG}


def _content(artifact: Artifact) -> Any:
    contents = {
        format_id: (entry.size_bytes, entry.sha256) for format_id, entry in artifact.formats.items()
    }
    return artifact.kind, artifact.epoch, artifact.from_position, artifact.to_position, contents


def _mark(artifact: Artifact) -> tuple[int, int]:
    return artifact.epoch, artifact.to_position


def run(seed: int, database: Database, server: AwsServer, directory: Path, scenes: int = 2) -> Run:
    """One whole run, in which so many things go wrong.

    :raises AssertionError: naming what was broken.
    """
    with ExitStack() as stack:
        made = Run(seed, database, server, directory, stack)
        try:
            made.go(scenes)
        except BaseException as failure:
            failure.add_note(f"seed {seed}: {'; '.join(made.history)}; its logs: {directory}")
            raise
        return made
