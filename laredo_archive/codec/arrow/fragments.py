"""Splits blocks of lines into columns of JSON fragments, by the fastest exact method.

A fragment is a value verbatim, as it is in the line: ``42``, ``"a\\n"``,
``null``, ``{"b": 1}``. Only the wanted columns are made. Compiled code
does it (``structs.compiled``); where there is none, lines as docs/archive-format.md has them are
peeled (``peeled``), others are matched by one regular expression, or value by value.
"""

import re
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa

from laredo_archive.codec.arrow.peeled import Peeler
from laredo_archive.codec.split_line import heads, member_patterns, splitter
from laredo_archive.codec.structs import compiled
from laredo_archive.codec.values import JSONS
from laredo_model.column import Column

_OFFSET_BYTES = 4


def nesting(columns: Sequence[Column]) -> Collection[str]:
    """The columns whose values may hold objects: by docs/archive-format.md no other rule does."""
    return {column.name for column in columns if column.type in JSONS}


def strings(buffers: tuple[bytes, bytes]) -> pa.StringArray:
    """The array of these 32-bit offsets and texts on end.

    :raises ArrowInvalid: if one isn't UTF-8.
    """
    offsets, text = buffers
    rows = len(offsets) // _OFFSET_BYTES - 1
    found = pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(text))
    found.validate(full=True)
    return found


def rows_of(fragments: Mapping[str, pa.StringArray], block: bytes) -> int:
    """The number of lines in ``block``, which ``fragments`` are of."""
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
        """``wanted``: the columns to give; all if None.

        ``nesting``: those that may hold objects; None if that isn't known.
        ``whole``: whether each line has to be one to its end; else what follows the last wanted
        column may pass unseen.
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
        """By compiled code; None if there is none, or a line isn't such an object."""
        if compiled.module is None:
            return None
        found = compiled.module.lines(block, self._heads, self._is_wanted, self._whole)
        if found is None:
            return None
        try:
            return dict(zip(self._wanted, map(strings, found), strict=True))
        except pa.ArrowInvalid:  # text that isn't UTF-8: the exact way says where
            return None

    def _one_by_one(self, block: bytes) -> Mapping[str, pa.StringArray]:
        """Lines with values that are nested deeper than the expression reaches."""
        rows = [self._split(line) for line in block.split(b"\n") if line]
        return {
            name: pa.array([row[number] for row in rows], pa.string())
            for name, number in zip(self._wanted, self._chosen, strict=True)
        }
