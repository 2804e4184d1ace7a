"""Failover, a dropped slot, a disk that was put back: every boundary is what PostgreSQL held.

One table, one writer that notes before and after each commit where the WAL was and what the
rows are. So it is known, without any of our code, what may be read at which position of which
history; rows never come twice, so a mixture of two histories is neither's.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from laredo_archive.maintain.verify import verify
from laredo_archive.manifest import rules
from laredo_archive.reader import Archive
from tests.end_to_end.fanout import snapshotter
from tests.support.clusters import Clusters, position_of, promote, wait_replayed, wait_synced
from tests.support.oracle import ends
from tests.support.processes import wait_until
from tests.support.server.fanout_program import Fanout, fanout

Rows = dict[str, str]


@dataclass
class WriterSession:
    """One history: states with the positions before and after the commit that made each."""

    states: list[tuple[int, int, Rows]] = field(default_factory=list)

    def may_be(self, position: int) -> list[Rows]:
        """Possible states of the table at ``position``: one, or two if the commit may end there."""
        ends = [after for _, after, _ in self.states[1:]] + [1 << 64]
        return [
            rows
            for (before, _, rows), end in zip(self.states, ends, strict=True)
            if before <= position < end
        ]


class World:
    """Server, writer, and the truth."""

    def __init__(self, directory: Path, clusters: Clusters) -> None:
        self.clusters = clusters
        self.lives: dict[str, WriterSession] = {}
        self.life = WriterSession()
        self._numbers = count(1)
        self.postgres = clusters.new(18)
        database = clusters.lead_to(self.postgres)
        self._run("CREATE TABLE t (id text PRIMARY KEY, v text)")
        self.server: Fanout = fanout(directory / "server", database.dsn, "{ table = t }")
        archive = directory / "archive"
        archive.mkdir()
        self.archive = archive / "t"
        self.writer = snapshotter(directory, archive, [self.server.grpc_port], ["t"])

    def _run(self, *statements: str) -> None:
        with self.postgres.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def rows(self) -> Rows:
        with self.postgres.connect() as connection:
            found = connection.execute("SELECT id, v FROM t").fetchall()
        return {str(key): str(value) for key, value in found}

    def begin_life(self) -> None:
        """Begin another history for later commits."""
        self.life = WriterSession([(0, 0, self.rows())])

    def write(self, transactions: int) -> None:
        """Some transactions, each noted."""
        for _ in range(transactions):
            number = next(self._numbers)
            before = position_of(self.postgres)
            self._run(
                f"BEGIN; INSERT INTO t VALUES ('{number}', 'made {number}');"
                f" UPDATE t SET v = v || '.{number}' WHERE id::int % 3 = {number % 3};"
                f" DELETE FROM t WHERE id = '{number - 7}'; COMMIT"
            )
            self.life.states.append((before, position_of(self.postgres), self.rows()))

    def archived(self) -> None:
        """Wait until the archive's head is what the table is now, and name the life's history."""
        wanted = self.rows()

        def level() -> bool:
            found = self.at_boundaries()
            return bool(found) and found[-1][2] == wanted

        try:
            wait_until(level, "the archive is level")
        except AssertionError as late:
            tails = f"{self.server.program.tail()}\n{self.writer.tail()}"
            raise AssertionError(f"{late}\n{tails}") from None
        self.lives[self.history()] = self.life

    def history(self) -> str:
        """The history that the archive's head is of."""
        return str(self.at_boundaries()[-1][0]["history"])

    def at_boundaries(self) -> list[tuple[dict[str, Any], int, Rows]]:
        """Each artifact as it was written, where it ends, and the rows there."""
        if not (self.archive / "manifest.json").exists():
            return []
        return [
            (artifact, position, {row["id"]: row["v"] for row in map(json.loads, lines)})
            for artifact, position, lines in ends(self.archive, ["id"])
        ]


@contextmanager
def running(directory: Path, clusters: Clusters) -> Iterator[World]:
    world = World(directory, clusters)
    with world.server.program, world.writer:
        world.begin_life()
        yield world


@pytest.mark.thorough
def test_no_history_is_mixed_with_another(tmp_path: Path, clusters: Clusters) -> None:
    with running(tmp_path, clusters) as world:
        # Else the first base might wait for a look, and take the changes with it.
        world.archived()
        world.write(5)
        world.archived()
        first = world.history()
        failed_over(world)
        world.begin_life()
        # Also if nothing is written after it; and it is the archive's for good.
        wait_until(lambda: world.history() != first, "the new history is in the archive")
        world.archived()
        world.writer.kill()
        world.write(5)
        world.writer.start()
        world.archived()
        log = world.server.program.log.read_text()
        assert "failover detected; stream continued" in log and "copied again" not in log
        slot_dropped(world)
        world.archived()
        saved = disk_saved(world)
        world.write(3)
        world.archived()
        world.lives[world.history()] = world.life
        disk_put_back(world, saved)
        world.begin_life()
        world.write(8)
        world.archived()
        check(world)


def failed_over(world: World) -> None:
    standby = world.clusters.standby(world.postgres, sync_replication_slots="on")
    world.write(2)
    world.archived()
    wait_synced(world.postgres, standby)
    wait_replayed(standby, position_of(world.postgres))
    world.postgres.stop()
    promote(standby)
    world.clusters.lead_to(standby)
    world.postgres = standby


def slot_dropped(world: World) -> None:
    """While the server was stopped; what is written then is in no stream."""
    world.server.program.stop()
    with world.postgres.connect() as connection:
        connection.execute("SELECT pg_drop_replication_slot('s')")
    world.write(3)
    world.server.program.start()
    world.server.program.wait_ready()


def disk_saved(world: World) -> Path:
    world.postgres.stop()
    saved = world.clusters.saved(world.postgres)
    world.postgres.start()
    return saved


def disk_put_back(world: World, saved: Path) -> None:
    world.postgres.stop()
    world.clusters.put_back(world.postgres, saved)
    world.postgres.start()


def breaks(world: World) -> list[str | None]:
    """The reasons of the bases that don't continue the epoch before; None of the first."""
    return [
        artifact.get("reason")
        for artifact, _, _ in world.at_boundaries()
        if artifact["kind"] == "snapshot" and not artifact["continues"]
    ]


def check(world: World) -> None:
    """Each boundary is what PostgreSQL held in its history, and the archive is sound."""
    assert len(world.at_boundaries()) >= 7
    for artifact, position, rows in world.at_boundaries():
        life = world.lives[artifact["history"]]
        assert rows in life.may_be(position), (
            f"epoch {artifact['epoch']}, {artifact['to_position']} of {artifact['history']}:"
            f" {rows}\n{life.may_be(position)}"
        )
    assert list(rules.check(Archive.at(str(world.archive)).manifest)) == []
    report = verify(Archive.at(str(world.archive)))
    assert report.sound, report.problems
    check_reasons(world)


def check_reasons(world: World) -> None:
    """The epochs that don't continue say why, and a failover with the slot begins none."""
    found = world.at_boundaries()
    reasons = breaks(world)
    first, second, third = dict.fromkeys(artifact["history"] for artifact, _, _ in found)
    assert first.split(":")[1] == "1" and second.split(":")[1] == "2"
    assert third.startswith(f"{second}+")
    assert reasons[0] is None
    assert "slot s doesn't exist any more" in str(reasons[1])
    assert str(reasons[2]).startswith(
        f"the history was {second} and is {third} now: the server's WAL"
    )
    assert len(reasons) == 3
    status = world.server.status["sources"]["pg"]
    assert status["history"] == third
    assert status["former_histories"][0]["history"] == first
