"""Objects of a destination, put and read whole."""

from contextlib import closing

from laredo_archive.storage.destination import Destination


def put(destination: Destination, key: str, data: bytes) -> None:
    upload = destination.upload(key)
    upload.write(data)
    upload.finish()


def read(destination: Destination, key: str, offset: int = 0) -> bytes:
    with closing(destination.open(key, offset)) as file:
        return file.read()


def keys(destination: Destination, prefix: str = "") -> list[str]:
    return sorted(found.key for found in destination.list(prefix))
