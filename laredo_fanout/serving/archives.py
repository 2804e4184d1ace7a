"""One table's archive as replays read it: in threads, never in the event loop."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog

from laredo_archive.aws.clients import AwsClients
from laredo_archive.errors import ArchiveError, ArchiveMissing, NoRoomToFetch
from laredo_archive.manifest import merged, parser
from laredo_archive.manifest.merged import PartsFiles
from laredo_archive.manifest.model import Artifact, FormatEntry, Manifest
from laredo_archive.manifest.object_keys import manifest_key
from laredo_archive.read import fetched_diff, location
from laredo_archive.read.location import FoundArchive
from laredo_archive.storage import access
from laredo_archive.storage.destination import Destination
from laredo_archive.storage.local import LocalDestination
from laredo_fanout.serving.options import ArchiveOptions
from laredo_fanout.serving.replay import NoReplay, Outcome
from laredo_fanout.serving.slices import DaemonThreads
from laredo_fanout.serving.snapshot_rows import DISK_RESERVE
from laredo_model.column import Column
from laredo_model.line import Change
from laredo_model.position import Position

T = TypeVar("T")

log = structlog.get_logger(__name__)

MANIFEST_WAIT_S = 10.0
"""Longest wait of a client for the archive's manifest, and again for the lists of merged diffs'
parts, before it is sent a snapshot."""
FRESH_S = 1.0
"""Time for which a manifest is used without reading it again, in seconds."""
UNAVAILABLE_S = 10.0
"""Time for which an archive that couldn't be read isn't tried again, in seconds."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A manifest as it was read, or the reason why it couldn't be."""

    #: When, in the loop's time.
    at: float
    found: FoundArchive | None
    problem: str


class ReplayArchive:
    """One table's archive, read for replays. The methods belong to one event loop."""

    def __init__(
        self,
        table: str,
        options: ArchiveOptions,
        *,
        replays: DaemonThreads,
        manifests: DaemonThreads,
        directory: Path | None,
        on_outcome: Callable[[str, Outcome], None],
    ) -> None:
        self.table = table
        self.options = options
        self._replays = replays
        self._manifests = manifests
        self._directory = directory
        self._on_outcome = on_outcome
        self._destination: Destination | None = None
        self._manifest: tuple[str, Manifest] | None = None
        self._reading: asyncio.Task[Reading] | None = None
        self._read: Reading | None = None
        self._bad: dict[str, float] = {}

    def count(self, outcome: Outcome) -> None:
        """Count the outcome of one client's replay."""
        self._on_outcome(self.table, outcome)

    async def found(self, *, newest: bool) -> tuple[FoundArchive, bool]:
        """Find the archive, with a manifest that is FRESH_S old at most (`newest`: read now).

        One read answers all clients that ask meanwhile. The second value is True if the manifest
        was read now.

        :raises NoReplay: it can't be read.
        """
        loop = asyncio.get_running_loop()
        known = self._read
        if known is not None and self._reading is None:
            age = loop.time() - known.at
            if known.found is None and age < UNAVAILABLE_S:
                raise NoReplay(Outcome.UNREADABLE, known.problem)
            if known.found is not None and age < FRESH_S and not newest:
                return known.found, False
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_manifest())
        reading_now = self._reading
        await asyncio.wait({reading_now}, timeout=MANIFEST_WAIT_S)
        if not reading_now.done():
            raise NoReplay(Outcome.UNREADABLE, f"no manifest within {MANIFEST_WAIT_S:g} s")
        reading = reading_now.result()
        if reading.found is None:
            raise NoReplay(Outcome.UNREADABLE, reading.problem)
        return reading.found, True

    async def unfolded(self, found: FoundArchive, *positions: Position) -> FoundArchive:
        """The archive with the boundaries next to each position, if merged diffs hide them.

        :raises NoReplay: a file that lists a merged diff's parts can't be read, or not in time.
        """
        if not any(artifact.parts for artifact in found.manifest.artifacts):
            return found
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(MANIFEST_WAIT_S):
                manifest = await loop.run_in_executor(self._manifests, _unfolded, found, positions)
        except (ArchiveError, OSError, RuntimeError) as failure:  # no thread can be started
            late = f"the parts of merged diffs weren't read within {MANIFEST_WAIT_S:g} s"
            raise NoReplay(Outcome.UNREADABLE, str(failure) or late) from failure
        return found._replace(manifest=manifest)

    async def _read_manifest(self) -> Reading:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._manifests, self._find)
            reading = Reading(loop.time(), found, "")
        except Exception as failure:  # the client gets a snapshot instead
            expected = isinstance(failure, ArchiveError | OSError)
            reading = Reading(loop.time(), None, str(failure))
            log.warning(
                "archive not read",
                table=self.table,
                error=str(failure),
                exc_info=None if expected else failure,
            )
        self._reading, self._read = None, reading
        return reading

    def _find(self) -> FoundArchive:
        """Read the manifest, in a thread; one at a time."""
        if self._destination is None:
            self._destination = destination_of(self.options)
        destination, key = self._destination, manifest_key(self.options.key_prefix)
        where = destination.uri_of(key)
        read = destination.get(key)
        if read is None:
            raise ArchiveMissing(
                where, "start laredo-snapshotter for the table, or correct the path"
            )
        if self._manifest is None or self._manifest[0] != read.version.etag:
            manifest = parser.parse(read.data, where, self.options.key_prefix)
            self._manifest = read.version.etag, manifest
        return FoundArchive(destination, key, self._manifest[1], location.as_it_is)

    def check(self, found: FoundArchive, diffs: tuple[Artifact, ...]) -> None:
        """Check that each diff has a format that can be read, and wasn't broken a moment ago.

        :raises NoReplay: if one has no such format, or was broken.
        """
        now = asyncio.get_running_loop().time()
        for diff in diffs:
            try:
                entry = fetched_diff.choose(found, diff, self.options.formats)[1]
            except ArchiveError as failure:
                raise NoReplay(Outcome.UNREADABLE, str(failure)) from failure
            if now - self._bad.get(entry.key, float("-inf")) < UNAVAILABLE_S:
                raise NoReplay(Outcome.UNREADABLE, f"{entry.uri} was broken a moment ago")

    def broken(self, diff: Artifact) -> None:
        """Remember a diff that couldn't be read, so that other clients don't try it now."""
        now = asyncio.get_running_loop().time()
        self._bad = {key: at for key, at in self._bad.items() if now - at < UNAVAILABLE_S}
        self._bad |= dict.fromkeys(diff.keys, now)

    def changes(
        self, found: FoundArchive, diff: Artifact, columns: tuple[Column, ...]
    ) -> Iterator[Change]:
        """Read a diff's changes, checked, in a thread. Raises like `fetched_diff.changes`."""
        _, entry = fetched_diff.choose(found, diff, self.options.formats)
        if self._directory is not None and entry.size_bytes > fetched_diff.MEMORY_BYTES:
            _check_room(self._directory, entry)
        return fetched_diff.changes(found, diff, columns, self.options.formats, self._directory)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run it in one of the threads for replays; if none can be started, the future fails."""
        try:
            return self._replays.submit(work)
        except RuntimeError as refused:
            failed: Future[T] = Future()
            failed.set_exception(refused)
            return failed


def _unfolded(found: FoundArchive, points: Sequence[Position]) -> Manifest:
    parts = PartsFiles(found.destination, found.locate, found.key_prefix)
    manifest = found.manifest
    for point in points:
        manifest = merged.unfolded(manifest, merged.at(point), parts.diffs_of)
    return manifest


def _check_room(directory: Path, entry: FormatEntry) -> None:
    """Check that fetching an object leaves the store's disk its reserve.

    :raises NoRoomToFetch: it doesn't.
    """
    wanted, free = entry.size_bytes + DISK_RESERVE, shutil.disk_usage(directory).free
    if free < wanted:
        raise NoRoomToFetch(
            entry.uri, str(directory), f"{wanted} bytes are needed, {free} are free"
        )


def destination_of(options: ArchiveOptions) -> Destination:
    """The destination that the options name; nothing is read there yet.

    :raises ArchiveError: if they name no valid one, or the `aws` extra isn't installed.
    """
    if options.path is not None:
        return LocalDestination(options.path)
    profiles, credentials = access.profiles(
        options.profile, options.role_arn, options.external_id, options.region
    )
    reached = access.S3Access(
        AwsClients(profiles),
        credentials,
        region=options.region,
        endpoint=options.endpoint,
        addressing=options.addressing,
    )
    return reached.destination(options.bucket or "", options.prefix.strip("/").split("/"))
