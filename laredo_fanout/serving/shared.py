"""The objects and limits that all sessions of a serving process share."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from laredo_fanout.serving.journal import RecentRecords
from laredo_fanout.serving.options import ArchiveOptions, ListenerOptions
from laredo_fanout.serving.ports import Wakeups
from laredo_fanout.serving.replay import Outcome
from laredo_fanout.serving.slices import DaemonThreads, mount_of
from laredo_fanout.serving.snapshot_rows import SpoolDirectory
from laredo_fanout.serving.struct_rows import StructRows
from laredo_fanout.store.errors import Damage
from laredo_fanout.store.reader import StoreReader
from laredo_service.files import make_private

if TYPE_CHECKING:
    from laredo_fanout.serving.archives import ReplayArchive

REPLAY_THREADS = 8
_MANIFEST_THREADS = 2
"""Threads for manifests alone: planning a replay doesn't wait for the replays under way."""

# Counters of changes and bytes that a serving process has sent to its clients.


@dataclass(slots=True)
class SentCounts:
    """Messages of streams, and their bytes.

    By gRPC the bytes are those of the messages, by Connect also those of envelopes and chunks. A
    message that is sent as JSON counts with its bytes as protobuf.
    """

    bytes: int = 0
    messages: int = 0

    def add(self, size: int, messages: int) -> None:
        """Count a write."""
        self.bytes += size
        self.messages += messages

    def take(self) -> tuple[int, int]:
        """Bytes and messages since the last call."""
        taken = self.bytes, self.messages
        self.bytes = self.messages = 0
        return taken


@dataclass(slots=True)
class Drain:
    """The drain of the server, in which new sessions are refused, and open ones asked to leave."""

    #: The Unix time in milliseconds by which clients must leave; 0: the server doesn't drain.
    deadline_ms: int = 0


def no_repair(found: Damage) -> None:
    """Do nothing: there is no ingest that could repair it."""


class Archives:
    """The archives of all tables that have one."""

    def __init__(
        self,
        options: Mapping[str, ArchiveOptions],
        directory: Path | None,
        on_outcome: Callable[[str, Outcome], None],
    ) -> None:
        self._directory = directory
        self._on_outcome = on_outcome
        self._threads: dict[object, tuple[DaemonThreads, DaemonThreads]] = {}
        """For replays and for manifests, by place: one that hangs stops no other's reads."""
        self._tables: dict[str, ReplayArchive] = {}
        self.change(options)

    def change(self, options: Mapping[str, ArchiveOptions]) -> None:
        """Read these archives from now on; one with the same options stays the same."""
        before, self._tables = self._tables, {}
        if not options:
            return
        # A quarter of a serving process's imports, which only a server with an archive needs.
        from laredo_fanout.serving.archives import ReplayArchive

        directory = self._directory
        if directory is not None:
            make_private(directory)
        for name, its_options in options.items():
            known = before.get(name)
            if known is None or known.options != its_options:
                replays, manifests = self._threads_of(its_options)
                known = ReplayArchive(
                    name,
                    its_options,
                    replays=replays,
                    manifests=manifests,
                    directory=directory,
                    on_outcome=self._on_outcome,
                )
            self._tables[name] = known

    def _threads_of(self, options: ArchiveOptions) -> tuple[DaemonThreads, DaemonThreads]:
        mount = None if options.path is None else mount_of(options.path)
        place = mount, options.endpoint, options.bucket
        if place not in self._threads:
            self._threads[place] = (
                DaemonThreads(REPLAY_THREADS, "replay"),
                DaemonThreads(_MANIFEST_THREADS, "manifest"),
            )
        return self._threads[place]

    def get(self, table: str) -> ReplayArchive | None:
        """The table's archive, if one is configured."""
        return self._tables.get(table)

    def close(self) -> None:
        """Stop the threads, without waiting for reads that are under way."""
        for both in self._threads.values():
            for threads in both:
                threads.shutdown()


@dataclass(frozen=True, slots=True)
class ServingResources:
    """The shared objects, one of these per process."""

    reader: StoreReader
    recent: RecentRecords
    wakeups: Wakeups
    drain: Drain
    listener: ListenerOptions
    structs: StructRows
    spool: SpoolDirectory
    archives: Archives
    sent: SentCounts
    report_damage: Callable[[Damage], None] = no_repair


# The connections that each port may have: shares of the process's file descriptors.
#
# With both ports they are three quarters of the descriptors at most, so that spools, archives and
# the store always find one.

_UNLIMITED = 1 << 30


def connect_connections() -> int:
    """Half of the descriptors: each client has a connection of its own."""
    return _share(2)


def grpc_connections(*, alone: bool) -> int:
    """Half of the descriptors, or a quarter if there is a Connect port: streams share connections.

    gRPC closes a connection beyond them at once.
    """
    return _share(2 if alone else 4)


def _share(parts: int) -> int:
    may_have, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if may_have == resource.RLIM_INFINITY else may_have // parts
