"""The interface of a Parquet target: versions of which readers see one, replaced in one step."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from laredo_spark.sync.folder import Folder
from laredo_spark.sync.state import SyncedFile, SyncState


class SyncTarget(Protocol):
    """A directory or a prefix of a bucket that holds one table in Parquet files."""

    def __str__(self) -> str:
        """The target as messages name it."""
        ...

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other syncs out for the block, or have them fail at their commit.

        :raises TargetBusy: if another sync is at work.
        :raises TargetRefused: if something else is there.
        """
        yield

    def state(self) -> SyncState | None:
        """The state of the version that readers see; None if nothing was synced yet.

        :raises TargetRefused: if it can't be read.
        """
        ...

    def shown(self) -> Folder:
        """The version that readers see.

        :raises TargetMissing: if nothing was synced yet.
        """
        ...

    def is_whole(self, state: SyncState) -> bool:
        """True if all files of the version that readers see exist with their sizes."""
        ...

    @contextmanager
    def staging(self) -> Iterator[Folder]:
        """A folder for the files that tasks write; nobody reads it before it is committed."""
        yield from ()

    def commit(self, state: SyncState, staged: Folder, kept: Sequence[SyncedFile]) -> None:
        """Make a version of ``kept`` and staged files, and show it to readers.

        :raises TargetBusy: if another sync has committed meanwhile.
        """
        ...

    def recorded(self, state: SyncState) -> None:
        """Replace the state of the version that readers see, whose files stay."""
        ...

    def remove_old(self, keep_s: float) -> None:
        """Remove the versions that were followed by another longer than ``keep_s`` ago."""
        ...
