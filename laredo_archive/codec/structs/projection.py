"""Some of a table's columns, taken out of a diff's rows before these are taken apart."""

from collections.abc import Callable, Container, Sequence
from functools import cached_property

from laredo_archive.codec.split_line import heads, splitter
from laredo_archive.codec.structs import compiled
from laredo_model import line as lines_


class Projection:
    """Some of a table's columns, and what its lines are reduced to so that they have these only."""

    def __init__(self, names: Sequence[str], wanted: Container[str]) -> None:
        """``names``: of all columns; ``wanted``: one or more of them."""
        self._all = list(names)
        self._chosen = [number for number, name in enumerate(names) if name in wanted]
        #: The names of the wanted columns, in the table's order.
        self.names = [names[number] for number in self._chosen]
        #: For each column a byte that says whether it is wanted.
        self.wanted = bytes(name in wanted for name in names)

    @cached_property
    def line_heads(self) -> tuple[bytes, ...]:
        """Text in front of each column's value in a line."""
        return heads(self._all)

    @cached_property
    def entry_heads(self) -> tuple[bytes, ...]:
        """Bytes in front of the length of each column's Value in a Struct."""
        return tuple(map(compiled.entry_key, self._all))

    @cached_property
    def _split(self) -> Callable[[bytes], Sequence[bytes]]:
        return splitter(self._all)

    def line(self, line: bytes) -> bytes:
        """The line with the wanted columns.

        :raises BadLine: if it isn't a line with the table's columns.
        """
        values = self._split(line)
        return lines_.join(self.names, [values[number] for number in self._chosen])
