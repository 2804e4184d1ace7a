"""Servers of one slot: one holds it, the others are its standbys."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from laredo_model import position
from tests.support.postgres import Database
from tests.support.processes import wait_until
from tests.support.server.fanout_program import Fanout, fanout


class Pair:
    """The servers, all with one configuration but for ports and directory; none is started."""

    def __init__(
        self, directory: Path, database: Database, tables: str, *, number: int = 2, extra: str = ""
    ) -> None:
        self.database = database
        self.slot = f"s_{database.name}"
        self.servers = [
            fanout(directory / name, database, tables) for name in ("a", "b", "c")[:number]
        ]
        peers = ", ".join(f'"127.0.0.1:{each.grpc_port}"' for each in self.servers)
        for each in self.servers:
            block = f"\nstandby {{\n  peers = [{peers}], token = between-us\n  {extra}\n}}\n"
            each.program.config.write_text(each.program.config.read_text() + block)

    @contextmanager
    def started(self) -> Iterator[tuple[Fanout, Fanout]]:
        """The first one holds the slot, and the others are complete; killed in the end."""
        with ExitStack() as stack:
            for each in self.servers:
                stack.callback(_end, each)
            for each in self.servers:
                each.program.start()
                each.program.wait_ready()
            holder = self.servers[0]
            wait_until(lambda: self.complete(holder) == len(self.servers) - 1, "standbys complete")
            yield self.servers[0], self.servers[1]

    def complete(self, holder: Fanout) -> int:
        return sum(each["complete"] for each in shown(holder)["standbys"])

    def confirmed(self) -> int:
        """Position that the slot is confirmed to."""
        row = self._one("SELECT confirmed_flush_lsn::text FROM pg_replication_slots")
        return int(position.parse(str(row)))

    def written(self) -> int:
        """End of the WAL."""
        return int(position.parse(str(self._one("SELECT pg_current_wal_insert_lsn()::text"))))

    def is_free(self) -> bool:
        return not self._one("SELECT active FROM pg_replication_slots")

    def _one(self, query: str) -> Any:
        where = f" WHERE slot_name = '{self.slot}'" if "slots" in query else ""
        with self.database.connect() as owner:
            row = owner.execute((query + where).encode()).fetchone()
        assert row is not None
        return row[0]

    def promote(self, server: Fanout) -> None:
        """Have the standby take over, as an operator does, once the slot is free.

        :raises AssertionError: if it is refused.
        """
        wait_until(self.is_free, "the slot is free")
        done = server.run("promote")
        assert done.returncode == 0, done.stderr + server.program.tail()


def shown(server: Fanout) -> dict[str, Any]:
    """The server's role, as /status shows it."""
    found: dict[str, Any] = next(iter(server.status["sources"].values()))["standby"]
    return found


def copies(*servers: Fanout) -> int:
    """Number of tables that they have copied from PostgreSQL since they were first started."""
    logs = [(each.directory / "fanout.log").read_text() for each in servers]
    return sum(log.count("table copy scheduled") for log in logs)


def wipe(server: Fanout) -> None:
    """The stopped server's disk is lost."""
    shutil.rmtree(server.directory / "state")


def _end(server: Fanout) -> None:
    if server.program.is_running():
        server.program.kill()
