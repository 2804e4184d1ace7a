"""A folder of a Parquet target, as a sync's tasks read and write it: local, or in a bucket."""

import io
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, BinaryIO, Protocol

from laredo_archive.errors import NameTaken
from laredo_archive.read import location
from laredo_archive.storage.destination import Destination, Upload
from laredo_archive.write import uploads
from laredo_archive.write.manifest_store import Environment
from laredo_model.files.durable import sync_file
from laredo_spark.options import ReadOptions


class Folder(Protocol):
    """Files that are never changed. Each task gets a copy of it."""

    def open(self, name: str) -> IO[bytes]:
        """A file, at its beginning; it can be read anywhere."""

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """A new file: whole and durable once the block has ended without an error."""
        yield from ()


@dataclass(frozen=True)
class LocalFolder:
    """A directory that all of Spark's workers see."""

    #: Where it is.
    path: Path

    def open(self, name: str) -> IO[bytes]:
        """The file."""
        return (self.path / name).open("rb")

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """A file that is synced to the disk when the block ends."""
        with (self.path / name).open("wb") as file:
            yield file
            sync_file(file)


@dataclass(frozen=True)
class BucketFolder:
    """The objects below a prefix; what is created is one once its upload is finished."""

    #: Where it is, with ``/`` at the end.
    uri: str
    #: Whose rights, region and endpoint are used.
    asked: ReadOptions

    @cached_property
    def destination(self) -> Destination:
        """The prefix, as a store of objects."""
        return destination_at(self.uri, self.asked)

    def __getstate__(self) -> dict[str, object]:
        # Connections stay where they are.
        return {"uri": self.uri, "asked": self.asked}

    def open(self, name: str) -> IO[bytes]:
        """The object, in memory: Parquet is read from its end, in many small pieces."""
        with closing(self.destination.open(name)) as source:
            return io.BytesIO(source.read())

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """An object that is uploaded while it is written."""
        upload = self.destination.upload(name)
        try:
            written = Uploading(upload)
            yield written
            self._finish(upload, name, written.tell())
        finally:
            upload.abort()

    def _finish(self, upload: Upload, name: str, size_bytes: int) -> None:
        try:
            uploads.finish(upload, Environment())
        except NameTaken:
            # By this very upload, whose answer was lost: names are random.
            if not uploads.is_there(self.destination, name, size_bytes):
                raise


class Uploading(io.RawIOBase, BinaryIO):
    """An upload as a file that is written."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self._size = 0

    def writable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """How many bytes were written."""
        return self._size

    def write(self, data: bytes | memoryview, /) -> int:  # type: ignore[override]
        """Append."""
        self._upload.write(data)
        self._size += len(data)
        return len(data)


def destination_at(uri: str, asked: ReadOptions) -> Destination:
    """The store of the objects below ``uri``, with the rights, region and endpoint of a read.

    :raises DestinationError: if it isn't a location.
    """
    found, _ = location.parse(uri, asked.access()).split_at(0)
    return found
