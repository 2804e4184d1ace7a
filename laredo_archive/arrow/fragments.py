"""Blocks of lines taken apart into columns of JSON fragments, by one regular expression.

A fragment is a value verbatim, as it stands in the line: ``42``, ``"a\\n"``,
``null``, ``{"b": 1}``. Only the wanted columns are made.
"""

import re
from collections.abc import Mapping, Sequence

import pyarrow as pa

from laredo_archive.codec.split_line import member_patterns, splitter


class BlockSplitter:
    """Takes apart blocks of whole lines, each an object with the same names in the same order."""

    def __init__(self, names: Sequence[str], wanted: Sequence[str] | None = None) -> None:
        """``wanted``: the columns to give; all if None."""
        self._wanted = [name for name in names if wanted is None or name in set(wanted)]
        self._chosen = [number for number, name in enumerate(names) if name in set(self._wanted)]
        members = member_patterns(names, captured=set(self._chosen))
        self._find = re.compile(rb"^\{" + b",".join(members) + rb"\}$", re.MULTILINE).findall
        self._split = splitter(names)

    @property
    def names(self) -> Sequence[str]:
        """What :meth:`split` gives."""
        return self._wanted

    def split(self, block: bytes) -> Mapping[str, pa.StringArray]:
        """The fragments by column; ``block`` ends with a newline, or is empty.

        :raises BadLine: if a line isn't such an object.
        """
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

    def _one_by_one(self, block: bytes) -> Mapping[str, pa.StringArray]:
        """Lines with values that are nested deeper than the expression reaches."""
        rows = [self._split(line) for line in block.split(b"\n") if line]
        return {
            name: pa.array([row[number] for row in rows], pa.string())
            for name, number in zip(self._wanted, self._chosen, strict=True)
        }
