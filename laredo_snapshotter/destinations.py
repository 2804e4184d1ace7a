"""The destinations and AWS clients of all tables, made once for the process."""

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from laredo_archive.aws.clients import AwsClients, Called, ignore
from laredo_archive.aws.profile import Profile
from laredo_archive.storage.destination import Destination
from laredo_archive.storage.local import LocalDestination
from laredo_archive.storage.s3.destination import S3Destination
from laredo_snapshotter.config import TableConfig
from laredo_snapshotter.config_outputs import (
    DestinationConfig,
    LocalDestinationBlock,
    S3DestinationBlock,
)

_Profiles = tuple[tuple[str, Profile], ...]


@dataclass
class _Shared:
    """A bucket that all tables with the same settings use; probed once."""

    destination: S3Destination
    asking: threading.Lock = field(default_factory=threading.Lock)
    fit: bool = False


class Stores:
    """Makes the destinations that a configuration names. Safe for use by several threads."""

    def __init__(self, on_call: Callable[[Called], None] = ignore) -> None:
        """``on_call`` is called with every request to AWS."""
        self._on_call = on_call
        self._lock = threading.Lock()
        self._clients: dict[_Profiles, AwsClients] = {}
        self._shared: dict[tuple[object, AwsClients], _Shared] = {}

    def clients(self, profiles: Mapping[str, Profile]) -> AwsClients:
        """The clients of ``profiles``, and of the ambient one."""
        known = tuple(sorted(profiles.items()))
        with self._lock:
            if known not in self._clients:
                self._clients[known] = AwsClients(profiles, self._on_call)
            return self._clients[known]

    def open(
        self, table: TableConfig, asking: Callable[[str], AbstractContextManager[None]]
    ) -> list[Destination]:
        """The destinations of ``table`` as configured, in order; each has conditional writes.

        ``asking`` is entered with a destination's location while its answer is awaited.

        :raises ConditionalWritesMissing: if one lacks them.
        :raises AwsError: if one's settings or credentials can't be used.
        :raises DestinationUnavailable: if one is unavailable; try again later.
        """
        clients = self.clients(table.profiles)
        opened = []
        for block in table.destinations:
            with asking(block.location):
                opened.append(self._opened(block, clients))
        return opened

    def destination(self, block: DestinationConfig, clients: AwsClients) -> Destination:
        """The destination that ``block`` configures; no request is sent.

        :raises AwsError: if its settings or credentials can't be used.
        """
        if isinstance(block, LocalDestinationBlock):
            return LocalDestination(block.path)
        return self._bucket(block, clients).destination

    def _opened(self, block: DestinationConfig, clients: AwsClients) -> Destination:
        if isinstance(block, S3DestinationBlock):
            shared = self._bucket(block, clients)
            with shared.asking:
                if not shared.fit:
                    shared.destination.probe()
                    shared.fit = True
        return self.destination(block, clients)

    def _bucket(self, block: S3DestinationBlock, clients: AwsClients) -> _Shared:
        s3_location = block.s3_location
        known = (s3_location, clients)
        with self._lock:
            if known not in self._shared:
                self._shared[known] = _Shared(S3Destination(s3_location, clients))
            return self._shared[known]
