"""One seeded run in which tables change their form while everything else goes wrong.

A PostgreSQL of its own, laredo-fanout behind proxies, laredo-snapshotter, clients.
What is written is drawn from the seed, and after how many steps of it which fault
comes. In the end all is well again, and everything that anybody held at any
position is compared with what PostgreSQL held there: each boundary of each
archive, each state that a client came by, the server's own.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from laredo_archive.manifest import parser
from laredo_fanout.store.reader import StoreReader
from laredo_model import position as position_
from tests.end_to_end.changing_database import ChangingDatabase
from tests.end_to_end.live_copies import LiveCopies
from tests.end_to_end.misfortunes import Misfortunes
from tests.end_to_end.upheaval_programs import Programs
from tests.support.archive import command_line
from tests.support.clusters import Clusters
from tests.support.oracle import Oracle, assert_same, ends
from tests.support.processes import wait_until

PUBLICATIONS = ("laredo", "laredo_append")
POSTGRES = {"logical_decoding_work_mem": "64kB", "max_prepared_transactions": "10"}


class Upheaval:
    """A seed's database, programs and clients."""

    def __init__(
        self,
        seed: int,
        clusters: Clusters,
        directory: Path,
        stack: ExitStack,
        misfortunes: Collection[str] = (),
        *,
        patiently: bool = False,
    ) -> None:
        self.history: list[str] = []
        """Actions of the run, for the report of a failure."""
        self.compared = 0
        self.blind: Counter[str] = Counter()
        """States of a time when nobody could know of a change, by who held them."""
        self.clusters = clusters
        self.settings = POSTGRES
        self._seed = seed
        self._directory = directory
        self._stack = stack
        self._chance = random.Random(f"faults {seed}")
        self.version = self._chance.choice([16, 18])
        self.postgres: EmbeddedPostgres = clusters.new(self.version, **POSTGRES)
        self.oracle = Oracle(self.postgres.dsn())
        stack.callback(self.oracle.disconnect)
        self.database = ChangingDatabase(self.postgres.dsn(), seed, self.oracle, PUBLICATIONS)
        stack.callback(self.database.close)
        tables = self.database.tables
        self.programs = Programs(directory, self._chance, self._socket, tables, stack)
        self.server, self.snapshotter = self.programs.server, self.programs.snapshotter
        names = [table.name for table in tables]
        self.clients = LiveCopies(self.programs.to_server.port, names)
        self._misfortunes = Misfortunes(self, patiently=patiently, only=misfortunes)

    # ------------------------------------------------------------ what happens

    def go(self, scenes: int) -> None:
        """Let ``scenes`` things go wrong, then end.

        :raises AssertionError: naming what was broken.
        """
        self._stack.callback(self._end_all)
        self.steps(self._chance.randint(0, 60))
        self.server.start()
        self.snapshotter.start()
        self.clients.start()
        for number in range(scenes):
            # By itself, so that what one of them draws more or less of changes no other.
            self._chance.seed(f"scene {self._seed} {number}")
            self._misfortunes.chance.seed(f"misfortune {self._seed} {number}")
            self.database.begin_part(number)
            self._scene()
        self._end()
        self._check()

    def _scene(self) -> None:
        """Some steps, something that goes wrong, some steps, and perhaps a rest."""
        chance = self._chance
        self.steps(chance.choice([5, 40, 100]))
        if chance.random() < 0.7:
            self._misfortunes.one()
        self.steps(chance.choice([0, 5, 40]))
        self.clients.check()
        rest = chance.random()
        if rest < 0.7:
            # A copy waits for whoever has written to its table, and we are all of them.
            self.database.finish()
        if rest < 0.5:
            self.wait(lambda: self._archives_reach(self.oracle.last_commit()), "archives are level")
        elif rest < 0.7:
            self.wait_ready()

    def steps(self, count: int) -> None:
        """Run ``count`` steps of the application."""
        for _ in range(count):
            dice = self.database.random.random()
            if dice < 0.04:
                self.database.change_form()
            elif dice < 0.08:
                self.database.move_partitions()
            else:
                self.database.step()

    def tell(self, what: str) -> None:
        """Something was done."""
        self.history.append(what)

    # ------------------------------------------------------------ PostgreSQL

    @property
    def _socket(self) -> Path:
        return self.postgres.socket_directory / ".s.PGSQL.5432"

    def postgres_is_back(self) -> None:
        """It was ended, and answers again soon."""
        self.wait(self._answers, "PostgreSQL answers")
        self.oracle.reconnect()
        self.database.reconnect()

    def lead_to(self, server: EmbeddedPostgres) -> None:
        """Another one goes on from where the former was ended."""
        self.postgres = server
        self.programs.to_postgres.lead_to(str(self._socket))
        self.programs.to_postgres.cut()
        self.oracle.move(server.dsn())
        self.database.reconnect(server.dsn())

    def server_has_slot(self) -> bool:
        """True once the server has made its slot."""
        with self.postgres.connect() as connection:
            found = connection.execute(
                "SELECT FROM pg_replication_slots WHERE slot_name = 'laredo'"
                " AND confirmed_flush_lsn IS NOT NULL"
            )
            return found.fetchone() is not None

    def _answers(self) -> bool:
        with suppress(Exception):
            self.postgres.connect().close()
            return True
        return False

    # ------------------------------------------------------------ how it ends

    def _end(self) -> None:
        self.database.finish()
        for program in (self.server, self.snapshotter):
            if not program.is_running():
                program.start()
        last = self.oracle.last_commit()
        self.wait(lambda: self._archives_reach(last), "archives reach the last commit")
        self.wait(lambda: self._clients_reach(last), "clients reach the last commit")
        self.clients.finish()
        assert self.snapshotter.stop() == 0, self.snapshotter.tail()
        assert self.server.stop() == 0, self.server.tail()

    def _end_all(self) -> None:
        for program in (self.snapshotter, self.server):
            with suppress(AssertionError):
                if program.is_running():
                    program.kill()
        with suppress(BaseException):
            self.clients.finish()

    def _archives_reach(self, last: int) -> bool:
        return all(self._head(table.name) >= last for table in self.database.tables)

    def _head(self, table: str) -> int:
        """Last position of the table's archive, quiet or not; 0 before the first artifact."""
        manifest = self._directory / "archive" / table / "manifest.json"
        if not manifest.exists():
            return 0
        read = parser.parse(manifest.read_bytes(), str(manifest))
        return max(read.head_position or 0, read.seen_position or 0)

    def _clients_reach(self, last: int) -> bool:
        return all(copy.position >= last for copy in self.clients.copies.values())

    def wait_ready(self) -> None:
        """Until every table of the server is live."""
        self.wait(self.server.is_ready, "the server is ready")

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        """Until it holds, while all programs run.

        :raises AssertionError: if it doesn't for long, or one of them ended.
        """

        def holds() -> Any:
            self.clients.check()
            for program in (self.server, self.snapshotter):
                assert program.is_running(), f"{program.script} ended:\n{program.tail()}"
            return condition()

        began = time.monotonic()
        try:
            wait_until(holds, what)
        except AssertionError as late:
            tails = f"{self.server.tail()}\n{self.snapshotter.tail()}"
            raise AssertionError(f"{late}\n{tails}") from None
        self.tell(f"({what}: {time.monotonic() - began:.1f} s)")

    # ------------------------------------------------------------ what must be true

    def _check(self) -> None:
        for program in (self.server, self.snapshotter):
            log = program.log.read_text(errors="replace")
            assert "Exception in thread" not in log, f"{program.script}: a thread ended: {log}"
        for table in self.database.tables:
            archive = self._directory / "archive" / table.name
            found = ends(archive)
            _check_order(archive, [(artifact["history"], end) for artifact, end, _ in found])
            for _, position, lines in found:
                self._compare_exactly(f"archive of {table.name}", table.name, position, lines)
            copy = self.clients.copies[table.name]
            for position, rows in copy.seen.items():
                self._compare(f"client of {table.name}", table.name, position, [*rows.values()])
            self._check_store(table.name)
            self._verify(archive)

    def _compare(self, whose: str, table: str, position: int, lines: list[bytes]) -> None:
        if self.oracle.is_blind(table, position) or self._is_suspect(table, position):
            self.blind[whose.split(maxsplit=1)[0]] += 1
            return
        self._compare_exactly(whose, table, position, lines)

    def _is_suspect(self, table: str, position: int) -> bool:
        """True if the server has reported that its rows at ``position`` may have been wrong."""
        log = self.server.log.read_text(errors="replace")
        return any(start < position < end for start, end in repaired(log, f"public.{table}"))

    def _compare_exactly(self, whose: str, table: str, position: int, lines: list[bytes]) -> None:
        """Nothing ends between a change that shows in no stream and its detection."""
        self.compared += 1
        try:
            assert_same(self.oracle, table, position, lines)
        except AssertionError as differs:
            known = self.oracle.changes_before(table, position)
            raise AssertionError(f"{whose}: {differs}\n{position}: {known}") from None

    def _check_store(self, table: str) -> None:
        reader = StoreReader.open(self._directory / "state")
        try:
            known = reader.table(f"public.{table}")
            with reader.snapshot(known.record.id) as snapshot:
                lines = [line for _, some in snapshot.batches() for line in some]
                position = snapshot.position
        finally:
            reader.close()
        self._compare(f"store's {table}", table, position, lines)

    def _verify(self, archive: Path) -> None:
        verified = command_line.run("verify", archive)
        assert verified.returncode == 0, verified.stdout + verified.stderr


def repaired(log: str, table: str) -> list[tuple[int, int]]:
    """From where to where rows of this table had moved with partitions, as the server logged."""
    found = []
    since = None
    for line in log.splitlines():
        if not line.startswith("{") or f'"{table}"' not in line:
            continue
        said = json.loads(line)
        if said["event"] == "repair scheduled: rows moved with a partition":
            start = position_.parse(said["from_position"])
            since = start if since is None else min(start, since)
        elif said["event"] == "rows repaired after a partition moved":
            ends = said["from_position"], said["to_position"]
            found.append((position_.parse(ends[0]), position_.parse(ends[1])))
            since = None
        elif said["event"] == "table live" and since is not None:
            found.append((since, position_.parse(said["position"])))
            since = None
    return found


def run(
    seed: int,
    clusters: Clusters,
    directory: Path,
    scenes: int,
    misfortunes: Collection[str] = (),
    *,
    patiently: bool = False,
) -> Upheaval:
    """One whole run, in which so many things go wrong; ``patiently``: also what takes long.

    :raises AssertionError: naming what was broken.
    """
    with ExitStack() as stack:
        made = Upheaval(seed, clusters, directory, stack, misfortunes, patiently=patiently)
        try:
            made.go(scenes)
        except BaseException as failure:
            failure.add_note(
                f"seed {seed}: {'; '.join(made.history)}\nforms: {'; '.join(made.database.done)}\n"
                f"logs: {directory}"
            )
            raise
        return made


def _check_order(archive: Path, found: list[tuple[str, int]]) -> None:
    """Within a history positions never go back, and none is taken up again."""
    histories = [history for history, _ in found]
    known = list(dict.fromkeys(histories))
    assert histories == sorted(histories, key=known.index), histories
    for history in known:
        reached = [end for of, end in found if of == history]
        assert reached == sorted(reached), (archive, history, reached)
