"""Reads a whole object and compares its size and sha256 with its entry's."""

from laredo_archive.codec import ByteSource
from laredo_archive.errors import ArtifactDamaged, ArtifactMissing
from laredo_archive.manifest.entries import FormatEntry
from laredo_archive.read.progress import UNWATCHED, ReadProgress
from laredo_service.files import Digest

MISSING = (
    "the manifest names this object (was it deleted by hand, or not copied along?"
    " Restore it, or read another destination)"
)
_CURE = "Restore it from another destination, or read that one"


class Checked:
    """Passes a whole object's bytes on; at their end compares size and sha256.

    It raises ArtifactMissing and ArtifactDamaged.
    """

    def __init__(
        self, source: ByteSource, entry: FormatEntry, uri: str, progress: ReadProgress = UNWATCHED
    ) -> None:
        self._source = source
        self._entry = entry
        self._uri = uri
        self._progress = progress
        self._passed = Digest()

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes; empty at the end."""
        try:
            data = self._source.read(size)
        except ArtifactMissing as missing:
            raise ArtifactMissing(self._uri, MISSING) from missing
        except OSError as failure:
            raise ArtifactDamaged(self._uri, f"can't be read: {failure}") from failure
        self._passed.update(data)
        self._progress.advance(len(data))
        if self._passed.size > self._entry.size_bytes:
            # Not read on: it may have no end.
            raise ArtifactDamaged(self._uri, _longer(self._entry))
        if not data:
            self._compare()
        return data

    def _compare(self) -> None:
        if self._passed.size < self._entry.size_bytes:
            raise ArtifactDamaged(self._uri, wrong_size(self._passed.size, self._entry))
        found = self._passed.hex()
        if self._entry.sha256 not in (None, found):
            raise ArtifactDamaged(
                self._uri,
                f"its sha256 is {found}, the manifest has {self._entry.sha256}: its bytes have"
                f" changed since they were written. {_CURE}",
            )


def wrong_size(size: int, entry: FormatEntry) -> str:
    """Message about an object of another size than its entry's."""
    how = "cut off: " if size < entry.size_bytes else ""
    return f"{how}it has {size} bytes, the manifest has {entry.size_bytes}. {_CURE}"


def _longer(entry: FormatEntry) -> str:
    return f"it has more than the {entry.size_bytes} bytes in the manifest. {_CURE}"
