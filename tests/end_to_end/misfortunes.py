"""Faults of an upheaval: each by its name, at random times and for random programs."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

import httpx
import psutil

from tests.support.clusters import position_of, promote, wait_replayed, wait_synced
from tests.support.processes import PATIENCE_S

if TYPE_CHECKING:
    from examples.snapshotter.embedded_postgres import EmbeddedPostgres
    from tests.end_to_end.upheaval import Upheaval

RECOPY_ANSWER_S = 10
"""For an operator's request: without an answer the upheaval goes on."""


def crash(server: EmbeddedPostgres) -> None:
    """kill -9 of the postmaster; its children notice and end."""
    pid = int((server.data / "postmaster.pid").read_text().splitlines()[0])
    children = psutil.Process(pid).children(recursive=True)
    server.stop(how=signal.SIGKILL)
    _, left = psutil.wait_procs(children, PATIENCE_S)
    assert not left, f"they outlive their postmaster: {left}"


class Misfortunes:
    """``only``: the names of those that may come, if not all of them may.

    ``patiently``: those too after which it takes half a minute until somebody notices.
    """

    def __init__(self, world: Upheaval, *, patiently: bool, only: Collection[str] = ()) -> None:
        self._world = world
        self.chance = random.Random()
        weights: dict[Callable[[], None], int] = {
            self.server_killed: 2,
            self.child_killed: 1,
            self.snapshotter_killed: 1,
            self.walsenders_ended: 1,
            self.backend_killed: 1,
            self.postmaster_ended: 1,
            self.postmaster_killed: 1,
            self.connections_cut: 1,
            self.connections_stuck: 1,
            self.clients_cut: 1,
            self.clients_stuck: int(patiently),
            self.fallen_behind: 2,
            self.copied_anew: 1,
            self.table_left_out: 1,
            self.failed_over: 1,
        }
        unknown = set(only) - {each.__name__ for each in weights}
        assert not unknown, f"no such misfortunes: {unknown}"
        self._drawn_from = [
            each
            for each, weight in weights.items()
            for _ in range(weight)
            if not only or each.__name__ in only
        ]

    def one(self) -> None:
        """One of them happens."""
        chosen = self.chance.choice(self._drawn_from)
        self._world.tell(chosen.__name__.replace("_", " "))
        chosen()

    # ------------------------------------------------------------ our own processes

    def server_killed(self) -> None:
        self._world.server.kill()
        self._steps(0, 20)
        self._world.server.start()

    def child_killed(self) -> None:
        """A serving process, or one that decodes a segment or a change."""
        which = self.chance.random()
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._world.server.pid).children(recursive=True)
            if children:
                children.sort(key=lambda each: each.pid)
                children[int(which * len(children))].kill()

    def snapshotter_killed(self) -> None:
        self._world.snapshotter.kill()
        self._steps(0, 20)
        self._world.snapshotter.start()

    def table_left_out(self) -> None:
        """Of the configuration, for one life of the server."""
        world = self._world
        table = self.chance.choice(world.database.tables).name
        world.tell(table)
        world.server.kill()
        world.programs.configure(without=[table])
        world.clients.absent.add(table)
        self._steps(0, 20)
        world.server.start()
        self._steps(0, 20, 60)
        if self.chance.random() < 0.5:
            world.database.finish()
            world.wait_ready()
        world.server.kill()
        world.programs.configure()
        self._steps(0, 20)
        world.server.start()

    # ------------------------------------------------------------ PostgreSQL

    def walsenders_ended(self) -> None:
        with self._world.postgres.connect() as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")

    def backend_killed(self) -> None:
        """By which the whole of PostgreSQL begins anew: it trusts no shared memory after that."""
        world = self._world
        with world.postgres.connect() as connection:
            found = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                " AND backend_type IN ('walsender', 'client backend')"
                " ORDER BY backend_type DESC, pid LIMIT 1"
            ).fetchone()
        assert found is not None
        os.kill(int(str(found[0])), signal.SIGKILL)
        world.wait(world.oracle.is_cut, "PostgreSQL notices")
        world.postgres_is_back()

    def postmaster_ended(self) -> None:
        """At once, without a checkpoint."""
        self._world.postgres.stop(how=signal.SIGQUIT)
        self._world.postgres.start()
        self._world.postgres_is_back()

    def postmaster_killed(self) -> None:
        crash(self._world.postgres)
        self._world.postgres.start()
        self._world.postgres_is_back()

    def failed_over(self) -> None:
        """To a standby that has everything; from version 17 on it has the slot, too."""
        world = self._world
        world.database.finish()
        world.oracle.last_commit()
        former = world.postgres
        slots = {"sync_replication_slots": "on"} if world.version >= 17 else {}
        standby = world.clusters.standby(former, world.version, **world.settings, **slots)
        if slots and self.chance.random() < 0.7 and world.server_has_slot():
            wait_synced(former, standby)
        wait_replayed(standby, position_of(former))
        if self.chance.random() < 0.5:
            former.stop(how=signal.SIGQUIT)
        else:
            crash(former)
        promote(standby)
        world.lead_to(standby)

    # ------------------------------------------------------------ what is in between

    def connections_cut(self) -> None:
        self._world.programs.to_postgres.cut()

    def connections_stuck(self) -> None:
        """Nothing passes, and nobody is told."""
        self._world.programs.to_postgres.stuck.set()

    def clients_cut(self) -> None:
        self._world.programs.to_server.cut()

    def clients_stuck(self) -> None:
        """Nothing passes, and nobody is told."""
        self._world.programs.to_server.stuck.set()

    # ------------------------------------------------------------ much at once

    def fallen_behind(self) -> None:
        """Build a backlog that is split; perhaps kill the process of one of the segments."""
        world = self._world
        if not world.server.is_running():
            world.server.start()
        server = psutil.Process(world.server.pid)
        server.suspend()
        try:
            self._steps(10, 100)
            for _ in range(self.chance.choice([3, 12])):
                world.database.much()
        finally:
            server.resume()
        with suppress(httpx.TransportError):
            answer = httpx.post(f"{world.server.http}/catchup", timeout=PATIENCE_S)
            world.tell(f"to split its backlog: {answer.status_code}")
        if self.chance.random() < 0.5:
            self._steps(5)
            self.chance.choice([self.child_killed, self.server_killed])()

    def copied_anew(self) -> None:
        """By an operator, without disturbing anybody."""
        table = self.chance.choice(self._world.database.tables).name
        with suppress(httpx.TransportError):
            answer = httpx.post(
                f"{self._world.server.http}/tables/public.{table}/recopy", timeout=RECOPY_ANSWER_S
            )
            self._world.tell(f"{table}: {answer.status_code}")

    def _steps(self, *numbers: int) -> None:
        self._world.steps(self.chance.choice(numbers))
