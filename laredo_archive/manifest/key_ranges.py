"""Cuts a table into key ranges that tasks read independently.

A manifest's entries name keys and byte offsets inside of each sorted artifact
(``splits``). So a range of keys is a slice of bytes of every artifact, a little
more than needed at both ends, and what is read by one task is read by no other,
but for artifacts too small to have splits.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from laredo_archive.manifest.model import Artifact, FormatEntry
from laredo_archive.manifest.timeline import Boundary

_UNEVEN = 2
"""Times the average that a range may weigh."""
Choose = Callable[[Artifact], tuple[str, FormatEntry]]
"""Which format of an artifact is read, and its entry; as ArtifactFiles.choose."""


@dataclass(frozen=True)
class KeyRange:
    """A range of keys, by their bytes."""

    #: The first key; None: from the first row on.
    low: bytes | None = None
    #: The first key after the range; None: to the last row.
    high: bytes | None = None

    def __contains__(self, key: bytes) -> bool:
        return (self.low is None or self.low <= key) and (self.high is None or key < self.high)

    @property
    def whole(self) -> bool:
        """True if it contains every key."""
        return self.low is None and self.high is None


def of_key(key: bytes) -> KeyRange:
    """The range with ``key`` alone."""
    return KeyRange(key, key + b"\0")


class Block(NamedTuple):
    """One block of an artifact."""

    #: The first byte.
    start: int
    #: The byte after the last one.
    stop: int
    #: The CRC-32 of the bytes.
    sum: int


@dataclass(frozen=True)
class ObjectSlice:
    """A part of one object: the bytes that hold the keys of a range."""

    format_id: str
    entry: FormatEntry
    #: The first byte.
    start: int = 0
    #: The byte after the last one; None: up to the end.
    stop: int | None = None

    @property
    def whole(self) -> bool:
        """True if it is the whole file, whose sha256 can then be checked."""
        return self.start == 0 and self.stop is None

    @property
    def size_bytes(self) -> int:
        """Number of bytes to read."""
        return self._end - self.start

    @property
    def blocks(self) -> list[Block]:
        """Blocks of the slice; empty if it isn't made of whole blocks, or none are known."""
        inside = [block for block in self.entry.blocks if self.start <= block[0] < self._end]
        ends = {self.entry.size_bytes, *(offset for offset, _ in self.entry.blocks)}
        if not inside or inside[0][0] != self.start or self._end not in ends:
            return []
        stops = [*(offset for offset, _ in inside[1:]), self._end]
        found = zip(inside, stops, strict=True)
        return [Block(offset, stop, sum_) for (offset, sum_), stop in found]

    @property
    def last_block(self) -> Block | None:
        """The file's last block: parquet's footer, which describes the others."""
        if not self.entry.blocks:
            return None
        offset, sum_ = self.entry.blocks[-1]
        return Block(offset, self.entry.size_bytes, sum_)

    def for_task(self) -> "ObjectSlice":
        """Copy the slice without the splits and checksums of the rest of the file."""
        near = [block for block in self.entry.blocks if self.start <= block[0] <= self._end]
        blocks = dict([*near, *self.entry.blocks[-1:]])
        entry = replace(self.entry, splits=(), blocks=tuple(blocks.items()), source={})
        return replace(self, entry=entry)

    @property
    def _end(self) -> int:
        return self.entry.size_bytes if self.stop is None else self.stop


@dataclass(frozen=True)
class RangeRead:
    """The slices that one task reads: its range of the base and of each diff."""

    #: The range.
    keys: KeyRange
    #: Its slice of the base; None after a TRUNCATE.
    base: ObjectSlice | None
    #: Its slice of each diff.
    diffs: tuple[ObjectSlice, ...]

    @property
    def size_bytes(self) -> int:
        """Number of bytes to read."""
        return sum(part.size_bytes for part in (self.base, *self.diffs) if part is not None)


def is_sorted(boundary: Boundary, choose: Choose) -> bool:
    """True if all artifacts that lead to ``boundary`` are sorted, so that ranges can be cut."""
    return all(choose(artifact)[1].sorted for artifact in _needed(boundary))


def plan(boundary: Boundary, choose: Choose, parts: int) -> list[RangeRead]:
    """The table at ``boundary`` in up to ``parts`` ranges of about the same size.

    Every artifact that is needed must be sorted (:func:`is_sorted`). There are fewer
    ranges where artifacts without splits, which each range reads whole, would make up
    most of what is read.
    """
    needed = [_slice(artifact, choose) for artifact in _needed(boundary)]
    cuts = _cuts(needed, parts)
    ends = [None, *cuts, None]
    return [cut(boundary, choose, KeyRange(low, high)) for low, high in pairwise(ends)]


def joined(
    boundary: Boundary, choose: Choose, wanted: Sequence[KeyRange], parts: int
) -> list[RangeRead]:
    """Reads that cover ``wanted``, ascending ranges; at most one reads a block of the base.

    So keys between two of the ranges in a block are read too. Long ranges are cut as a plan in
    ``parts`` cuts the table.
    """
    needed = [_slice(artifact, choose) for artifact in _needed(boundary)]
    cuts = _cuts(needed, parts)
    reads: list[RangeRead] = []
    for keys in _without_shared_blocks(wanted, [key.encode() for key, _ in needed[0].entry.splits]):
        inside = [at for at in cuts if at in keys and at != keys.low]
        ends = [keys.low, *inside, keys.high]
        reads += [cut(boundary, choose, KeyRange(low, high)) for low, high in pairwise(ends)]
    return reads


def _without_shared_blocks(wanted: Sequence[KeyRange], starts: Sequence[bytes]) -> list[KeyRange]:
    found: list[KeyRange] = []
    last = -1
    for keys in wanted:
        first = 0 if keys.low is None else max(0, bisect_right(starts, keys.low) - 1)
        if first <= last:
            found[-1] = KeyRange(found[-1].low, keys.high)
        else:
            found.append(keys)
        last = len(starts) if keys.high is None else max(0, bisect_left(starts, keys.high) - 1)
    return found


def cut(boundary: Boundary, choose: Choose, keys: KeyRange) -> RangeRead:
    """The slices to read for one range of keys."""
    needed = _needed(boundary)
    slices = [narrowed(_slice(artifact, choose), keys) for artifact in needed]
    if needed[0].is_snapshot:
        return RangeRead(keys, slices[0], tuple(slices[1:]))
    return RangeRead(keys, None, tuple(slices))


def _needed(boundary: Boundary) -> Sequence[Artifact]:
    """The base and the diffs; from the last diff that truncates on, if one does."""
    truncating = [n for n, artifact in enumerate(boundary.artifacts) if artifact.truncate]
    return boundary.artifacts[truncating[-1] :] if truncating else boundary.artifacts


def _slice(artifact: Artifact, choose: Choose) -> ObjectSlice:
    return ObjectSlice(*choose(artifact))


def narrowed(whole: ObjectSlice, keys: KeyRange) -> ObjectSlice:
    """Slice of a sorted artifact that may have the range's keys; the first has a TRUNCATE too."""
    splits = whole.entry.splits
    starts = [key.encode() for key, _ in splits]
    start, stop = 0, None
    if keys.low is not None and splits:
        # The block before the first key above ``low`` may hold it.
        start = splits[max(0, bisect_right(starts, keys.low) - 1)][1]
        start = 0 if start == splits[0][1] else start
    if keys.high is not None:
        after = bisect_left(starts, keys.high)
        # Never before ``start``, even if the manifest's offsets don't ascend.
        stop = max(start, splits[after][1]) if after < len(splits) else None
    return ObjectSlice(whole.format_id, whole.entry, start, stop)


def _cuts(needed: Sequence[ObjectSlice], parts: int) -> list[bytes]:
    total = sum(part.entry.size_bytes for part in needed)
    unsplit = sum(part.entry.size_bytes for part in needed if not part.entry.splits)
    parts = min(parts, max(2, total // max(1, unsplit)))
    base = needed[0].entry
    others = total - base.size_bytes
    everything = _blocks(part.entry for part in needed)
    if base.splits and base.size_bytes >= others:
        # A base is cut at its own splits only, so that none of it is read twice, unless diffs make
        # one of its ranges far heavier than the others.
        cuts = _evenly(_blocks([base]), parts)
        if _heaviest(everything, cuts) <= _UNEVEN * total / parts:
            return cuts
    return _evenly(everything, parts)


def _blocks(entries: Iterable[FormatEntry]) -> list[tuple[bytes, int]]:
    """Each block's first key and its bytes, in key order."""
    blocks: list[tuple[bytes, int]] = []
    for entry in entries:
        ends = [*entry.splits, ("", entry.size_bytes)]
        blocks += [(key.encode(), end - start) for (key, start), (_, end) in pairwise(ends)]
    return sorted(blocks)


def _heaviest(blocks: Iterable[tuple[bytes, int]], cuts: Sequence[bytes]) -> int:
    """Bytes of the largest part between the cuts."""
    sizes = [0] * (len(cuts) + 1)
    for key, size in blocks:
        sizes[bisect_right(cuts, key)] += size
    return max(sizes)


def _evenly(blocks: Sequence[tuple[bytes, int]], parts: int) -> list[bytes]:
    """Keys at which to cut, so that every part has about as many bytes."""
    share = sum(size for _, size in blocks) / max(1, parts)
    cuts: list[bytes] = []
    gathered = 0.0
    for key, size in blocks:
        least = cuts[-1] if cuts else blocks[0][0]
        if gathered >= share and len(cuts) < parts - 1 and least < key:
            cuts.append(key)
            gathered -= share
        gathered += size
    return cuts
