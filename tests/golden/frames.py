"""Compressed artifacts by docs/archive-format.md alone: a zstd frame for each split."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import zstandard

SUFFIX = ".zst"
Splits = list[list[Any]]


def written(plain: bytes, splits: Splits, there: bytes) -> tuple[bytes, Splits]:
    """``plain`` in frames, and where the splits are then.

    ``there``: a file that is taken if it has the same frames, by another version of zstd perhaps.
    """
    cuts = sorted({0, *(offset for _, offset in splits), len(plain)})
    wanted = [plain[start:stop] for start, stop in pairwise(cuts)]
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    made = [(part, compressor.compress(part)) for part in wanted]
    found = list(frames_of(there))
    if [part for part, _ in found] == wanted:
        made = found
    starts, at = {}, 0
    for cut, (_, frame) in zip(cuts, made, strict=False):
        starts[cut] = at
        at += len(frame)
    return b"".join(frame for _, frame in made), [[key, starts[at]] for key, at in splits]


def frames_of(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Content of each frame, and its own bytes."""
    while data:
        frame = zstandard.ZstdDecompressor().decompressobj()
        plain = frame.decompress(data)
        assert frame.eof
        rest = frame.unused_data
        yield plain, data[: len(data) - len(rest)]
        data = rest


def plain_of(data: bytes) -> bytes:
    """All frames' content."""
    return b"".join(plain for plain, _ in frames_of(data))
