"""Columns of JSON fragments, split off blocks of lines by the fastest exact method.

A column's head, ``,"name":``, can't occur inside of a string, where its quotes would have
backslashes, nor of an array, which has no colons; only an object may contain it. So before the
first column that may contain objects, the first occurrence from the left is the head, and after the
last such column, the first one from the right. Between two such columns it must be the only one.

A fragment is a value verbatim, as it is in the line: ``42``, ``"a\\n"``, ``null``, ``{"b": 1}``.
Compiled code splits blocks; where there is none, lines as docs/archive-format.md has them are
peeled (:class:`Peeler`), others are matched by one regular expression, or value by value.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from laredo_archive.codec import struct_reader
from laredo_archive.codec.row_keys import heads, member_patterns, splitter
from laredo_archive.codec.struct_rows import JSONS
from laredo_model.column import Column

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
        """Each column's fragments; None if a line is no row, or can't be split in this way.

        ``block`` ends with a newline.
        """
        if not self._usable:
            return None
        try:
            found = self._peeled(_inside(_lines(block), self._heads[0]))
        except pa.ArrowInvalid:
            # A line without the column, whose list has no second part; or bytes that aren't UTF-8.
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
    """Text of each line between ``head``, which it must begin with, and the brace at its end."""
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

    :raises ArrowInvalid: if a text doesn't contain it.
    """
    parts = pc.split_pattern(texts, at, max_splits=1, reverse=reverse).values
    if len(parts) != 2 * len(texts):
        raise pa.ArrowInvalid(f"{at} isn't in every line")
    before, after = _alternating(len(texts))
    return parts.take(before), parts.take(after)


@lru_cache(maxsize=4)
def _alternating(pairs: int) -> tuple[pa.Int32Array, pa.Int32Array]:
    """0, 2, 4, ... and 1, 3, 5, ..."""
    even = pa.array(range(0, 2 * pairs, 2), pa.int32())
    return even, pc.add(even, 1)


def _is_whole(fragments: pa.StringArray) -> bool:
    """True if each fragment is a whole value, by a count of brackets or quotes.

    A column with backslashes isn't checked.
    """
    arrays = _count(pc.starts_with(fragments, "["))
    if arrays:
        return arrays == _count(pc.ends_with(fragments, "]"))
    data = fragments.buffers()[2]
    text = b"" if data is None else data.to_pybytes()
    return _BACKSLASH in text or text.count(b'"') == 2 * _count(pc.starts_with(fragments, '"'))


def _count(found: pa.BooleanArray) -> int:
    return int(found.true_count)


_OFFSET_BYTES = 4


def nesting(columns: Sequence[Column]) -> Collection[str]:
    """The columns whose values may contain objects, by docs/archive-format.md."""
    return {column.name for column in columns if column.type in JSONS}


def strings(buffers: tuple[bytes, bytes]) -> pa.StringArray:
    """The array of these 32-bit offsets and joined texts.

    :raises ArrowInvalid: if a text isn't UTF-8.
    """
    offsets, text = buffers
    rows = len(offsets) // _OFFSET_BYTES - 1
    found = pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(text))
    found.validate(full=True)
    return found


def rows_of(fragments: Mapping[str, pa.StringArray], block: bytes) -> int:
    """Number of lines in ``block``, whose columns ``fragments`` are."""
    return len(next(iter(fragments.values()))) if fragments else block.count(b"\n")


class BlockSplitter:
    """Takes apart blocks of whole lines, each an object with the same names in the same order."""

    def __init__(
        self,
        names: Sequence[str],
        wanted: Sequence[str] | None = None,
        nesting: Collection[str] | None = None,
        *,
        whole: bool = True,
    ) -> None:
        """``wanted``: the columns to return; all if None.

        ``nesting``: those that may contain objects; None if that isn't known. ``whole``: each line
        is checked to its end; else only up to its last wanted column.
        """
        self._wanted = [name for name in names if wanted is None or name in set(wanted)]
        self._chosen = [number for number, name in enumerate(names) if name in set(self._wanted)]
        members = member_patterns(names, captured=set(self._chosen))
        self._find = re.compile(rb"^\{" + b",".join(members) + rb"\}$", re.MULTILINE).findall
        self._split = splitter(names)
        self._heads = heads(names)
        self._whole = whole
        self._is_wanted = bytes(number in set(self._chosen) for number in range(len(names)))
        self._peeler = None if nesting is None or not names else Peeler(names, nesting)

    def split(self, block: bytes) -> Mapping[str, pa.StringArray]:
        """The fragments by column; ``block`` ends with a newline, or is empty.

        :raises BadLine: if a line isn't such an object.
        """
        scanned = self._scanned(block) if self._heads and block else None
        if scanned is not None:
            return scanned
        peeled = self._peeler.peel(block) if self._peeler and block else None
        if peeled is not None:
            chosen = zip(self._wanted, self._chosen, strict=True)
            return {name: peeled[number] for name, number in chosen}
        # A match begins and ends with a line, so as many matches as lines are those lines.
        found = self._find(block)
        if len(found) != block.count(b"\n"):
            return self._one_by_one(block)
        if not self._wanted:
            return {}
        if len(self._wanted) == 1:
            return {self._wanted[0]: pa.array(found, pa.string())}
        columns = zip(*found, strict=True) if found else ([] for _ in self._wanted)
        return {
            name: pa.array(values, pa.string())
            for name, values in zip(self._wanted, columns, strict=True)
        }

    def _scanned(self, block: bytes) -> Mapping[str, pa.StringArray] | None:
        """The fragments by compiled code; None if there is none, or a line isn't such an object."""
        if struct_reader.module is None:
            return None
        found = struct_reader.module.lines(block, self._heads, self._is_wanted, self._whole)
        if found is None:
            return None
        try:
            return dict(zip(self._wanted, map(strings, found), strict=True))
        except pa.ArrowInvalid:  # text that isn't UTF-8: another way reports where
            return None

    def _one_by_one(self, block: bytes) -> Mapping[str, pa.StringArray]:
        """Split lines with values that are nested deeper than the expression reaches."""
        rows = [self._split(line) for line in block.split(b"\n") if line]
        return {
            name: pa.array([row[number] for row in rows], pa.string())
            for name, number in zip(self._wanted, self._chosen, strict=True)
        }
