"""Errors of readers of compressed artifacts, in addition to the codecs' own."""

from laredo_archive.errors import ArchiveError


class ZstandardNeeded(ArchiveError):
    """The artifact is there compressed only, and what reads that isn't installed."""

    def __init__(self, uri: str) -> None:
        super().__init__(
            f"{uri}: reading it needs zstandard, which isn't installed: pip install zstandard"
        )
        self.uri = uri
