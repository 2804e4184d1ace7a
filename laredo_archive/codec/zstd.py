"""jsonl and protobuf in zstd frames: ``jsonl.zst`` and ``protobuf.zst``.

A file is a series of frames (RFC 8878), each of whole records. A frame begins at each split, so
that a range of keys is a range of whole frames, as it is a range of bytes in the plain formats.
"""

from importlib.util import find_spec

from laredo_archive.errors import ArchiveError

SUFFIX = ".zst"
"""Of the format ids and of the files' names."""


def plain_format(format_id: str) -> str:
    """The format of what is in the frames: ``jsonl.zst`` -> ``jsonl``; others stay."""
    return format_id.removesuffix(SUFFIX)


def is_compressed(format_id: str) -> bool:
    """True if a file of this format is a series of frames."""
    return format_id.endswith(SUFFIX)


def is_installed() -> bool:
    """True if the library that writes and reads frames is installed."""
    return find_spec("zstandard") is not None


# Errors of readers of compressed artifacts, in addition to the codecs' own.


class ZstandardNeeded(ArchiveError):
    """The artifact is there compressed only, and what reads that isn't installed."""

    def __init__(self, uri: str) -> None:
        super().__init__(
            f"{uri}: reading it needs zstandard, which isn't installed: pip install zstandard"
        )
        self.uri = uri
