"""Splits blocks of lines with Arrow's own functions, one column of all lines after the other.

What is between two values, ``,"name":``, can't be inside of a string, where its quotes
would have backslashes, nor of an array, which has no colons; only an object may hold it. So from
the left the first one is the right one up to the first column that may hold objects, and from the
right the last one is. Between two such columns it has to be the only one there is.
"""

from collections.abc import Collection, Sequence
from functools import lru_cache

import orjson
import pyarrow as pa
import pyarrow.compute as pc

_BACKSLASH = b"\\"
_AMBIGUOUS = ","
"""A column of this name: between two strings of an array there are the same bytes as before it."""


class Peeler:
    """Takes apart blocks of whole lines, each an object with the same names in the same order."""

    def __init__(self, names: Sequence[str], nesting: Collection[str]) -> None:
        """``names``: one or more; ``nesting``: the columns whose values may hold objects."""
        quoted = [orjson.dumps(name).decode() for name in names]
        self._heads = [f",{name}:" for name in quoted]
        self._heads[0] = f"{{{quoted[0]}:"
        self._nesting = {number for number, name in enumerate(names) if name in nesting}
        self._first = min(self._nesting, default=len(names) - 1)
        self._last = max(self._nesting, default=len(names) - 1)
        self._usable = _AMBIGUOUS not in names

    def peel(self, block: bytes) -> list[pa.StringArray] | None:
        """Each column's fragments; None if a line is no row, or that can't be found in this way.

        ``block`` ends with a newline.
        """
        if not self._usable:
            return None
        try:
            found = self._peeled(_inside(_lines(block), self._heads[0]))
        except pa.ArrowInvalid:
            # A line without that column: its list has no second part. Or bytes that aren't UTF-8.
            return None
        return found if self._are_whole(found) else None

    def _peeled(self, inside: pa.StringArray) -> list[pa.StringArray]:
        heads, first, last = self._heads, self._first, self._last
        begin: list[pa.StringArray] = []
        end: list[pa.StringArray] = []
        if last + 1 < len(heads):
            inside, after = _parted(inside, heads[last + 1], reverse=True)
            end = _taken_apart(after, heads[last + 2 :])
        if first:
            before, inside = _parted(inside, heads[first])
            begin = _taken_apart(before, heads[1:first])
        between = heads[first + 1 : last + 1]
        for head in between:
            if pc.max(pc.count_substring(inside, head)).as_py() != 1:
                raise pa.ArrowInvalid(f"{head} doesn't occur exactly once")
        return [*begin, *_taken_apart(inside, between), *end]

    def _are_whole(self, fragments: Sequence[pa.StringArray]) -> bool:
        """True if strings and arrays begin and end where fragments do."""
        return all(
            number in self._nesting or _is_whole(array) for number, array in enumerate(fragments)
        )


def _lines(block: bytes) -> pa.StringArray:
    """The lines, without their newlines."""
    ends = pa.array([0, len(block) - 1], pa.int32()).buffers()[1]
    whole = pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(block)])
    whole.validate(full=True)
    return pc.split_pattern(whole, "\n").values


def _inside(lines: pa.StringArray, head: str) -> pa.StringArray:
    """Text between ``head``, with which each line has to begin, and the brace at its end."""
    begun = pc.starts_with(lines, head)
    if not (pc.all(begun).as_py() and pc.all(pc.ends_with(lines, "}")).as_py()):
        raise pa.ArrowInvalid(f"a line doesn't begin with {head}, or has no end")
    return pc.binary_slice(lines.cast(pa.binary()), len(head.encode()), -1).cast(pa.string())


def _taken_apart(texts: pa.StringArray, heads: Sequence[str]) -> list[pa.StringArray]:
    """Split texts at the ``heads``; halved recursively, so that little is copied."""
    if not heads:
        return [texts]
    middle = len(heads) // 2
    left, right = _parted(texts, heads[middle])
    return [*_taken_apart(left, heads[:middle]), *_taken_apart(right, heads[middle + 1 :])]


def _parted(
    texts: pa.StringArray, at: str, *, reverse: bool = False
) -> tuple[pa.StringArray, pa.StringArray]:
    """Split texts at the first ``at``, or the last one if ``reverse``.

    :raises ArrowInvalid: if it isn't in all of them.
    """
    parts = pc.split_pattern(texts, at, max_splits=1, reverse=reverse).values
    if len(parts) != 2 * len(texts):
        raise pa.ArrowInvalid(f"{at} isn't in all of them")
    before, after = _alternating(len(texts))
    return parts.take(before), parts.take(after)


@lru_cache(maxsize=4)
def _alternating(pairs: int) -> tuple[pa.Int32Array, pa.Int32Array]:
    """0, 2, 4, ... and 1, 3, 5, ..."""
    even = pa.array(range(0, 2 * pairs, 2), pa.int32())
    return even, pc.add(even, 1)


def _is_whole(fragments: pa.StringArray) -> bool:
    """By the bytes of all of them at once; not for a column with backslashes."""
    arrays = _count(pc.starts_with(fragments, "["))
    if arrays:
        return arrays == _count(pc.ends_with(fragments, "]"))
    data = fragments.buffers()[2]
    text = b"" if data is None else data.to_pybytes()
    return _BACKSLASH in text or text.count(b'"') == 2 * _count(pc.starts_with(fragments, '"'))


def _count(found: pa.BooleanArray) -> int:
    return int(found.true_count)
