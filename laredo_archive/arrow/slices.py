"""Slices of an archive's objects, opened with their checksums compared."""

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import BinaryIO

from laredo_archive.codec import ByteSource
from laredo_archive.codec.arrow.types import MistypedValue, UnrepresentableValue
from laredo_archive.errors import ArtifactDamaged, ArtifactMissing
from laredo_archive.manifest.key_ranges import ObjectSlice
from laredo_archive.read.location import FoundArchive
from laredo_archive.read.objects import (
    CHECK_AND_CURE,
    MISSING,
    Checked,
    CheckedBlocks,
    Opened,
    ReadAhead,
)
from laredo_archive.storage.destination import Destination
from laredo_archive.storage.local import LocalDestination

_DRAIN_BYTES = 1 << 20


class SliceOpener:
    """Opens slices of objects; expected ones are fetched while earlier ones are read."""

    def __init__(
        self,
        destination: Destination,
        locate: Callable[[str], str],
        found_now: Callable[[], FoundArchive],
    ) -> None:
        """``locate``: a manifest's key as the destination's; ``found_now``: the archive, read
        again when an object is gone."""
        self._destination = destination
        self._locate = locate
        self._found_now = found_now
        self._expected: dict[str, ObjectSlice] = {}
        # A local file needs no request.
        local = isinstance(destination, LocalDestination)
        self._ahead = None if local else ReadAhead(self._fetch)

    def expect(self, parts: Iterable[ObjectSlice]) -> None:
        """Announce the slices that are opened next, in this order, and read up to their stops."""
        if self._ahead is not None:
            self._expected = {_name(part): part for part in parts}
            self._ahead.expect(self._expected)

    @contextmanager
    def __call__(self, part: ObjectSlice) -> Iterator[ByteSource]:
        """An artifact's bytes from the slice's start on.

        Of a whole file the sha256 is checked, of a part its blocks' checksums.

        :raises ArtifactDamaged: if they differ from the entry, or can't be parsed.
        :raises ArtifactMissing: if the object isn't there any more.
        """
        uri = self._destination.uri_of(self._locate(part.entry.key))
        with closing(self._open_expected(part)) as source:
            checked = (
                Checked(source, part.entry, uri) if part.whole else CheckedBlocks(source, part, uri)
            )
            try:
                yield checked
            except (ValueError, MistypedValue) as wrong:
                # A damaged file is reported by its checksum, not by the first parse error.
                _drain(checked)
                raise self.unfit(uri, wrong) from None
            except UnrepresentableValue as lacking:
                raise lacking.with_location(uri) from None
            except OSError as wrong:
                raise ArtifactDamaged(uri, f"can't be read: {wrong}") from None
            _drain(checked)

    def unfit(self, uri: str, wrong: Exception) -> Exception:
        """Error of an object with the right checksum that isn't of its format."""
        return ArtifactDamaged(uri, f"{wrong}. {CHECK_AND_CURE}")

    def gone(self, uri: str, manifest_uri: str) -> Exception:
        """Error of an object that has left the archive, and its bytes with it."""
        return ArtifactMissing(
            uri,
            f"{manifest_uri} named this object when it was read (retention has removed it since:"
            " open the archive again)",
        )

    def _open_expected(self, part: ObjectSlice) -> Opened:
        if self._ahead is not None and self._expected.get(_name(part)) == part:
            return self._ahead.open(_name(part))
        return self._open(part)

    def _fetch(self, name: str) -> BinaryIO:
        part = self._expected[name]
        return self._open(part) if part.whole else PrefixReader(self._open(part), part.size_bytes)

    def _open(self, part: ObjectSlice) -> BinaryIO:
        try:
            return self._destination.open(self._locate(part.entry.key), part.start)
        except ArtifactMissing as missing:
            return self._open_moved(missing, part)

    def _open_moved(self, missing: ArtifactMissing, part: ObjectSlice) -> BinaryIO:
        """Open the same bytes under the key that a later manifest has for them."""
        found = self._found_now()
        for entry in found.manifest.named():
            if entry.same_content(part.entry) and entry.sha256 is not None:
                if entry.key == part.entry.key:
                    raise ArtifactMissing(missing.uri, MISSING) from None
                return found.destination.open(found.locate(entry.key), part.start)
        manifest_uri = found.destination.uri_of(found.manifest_key)
        raise self.gone(missing.uri, manifest_uri) from None


class PrefixReader(io.RawIOBase, BinaryIO):
    """A source cut off after its first bytes, so that nothing else is fetched."""

    def __init__(self, source: BinaryIO, size_bytes: int) -> None:
        self._source = source
        self._left = size_bytes

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes, at most up to the cut."""
        data = self._source.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data

    def close(self) -> None:
        """The source too."""
        self._source.close()
        super().close()


def _name(part: ObjectSlice) -> str:
    return f"{part.start} {part.entry.key}"


def _drain(source: Checked | CheckedBlocks) -> None:
    """Read to the end of a whole file, or of a part's last block, where checksums are compared."""
    while left := _DRAIN_BYTES if isinstance(source, Checked) else source.left:
        if not source.read(min(left, _DRAIN_BYTES)):
            return
