"""The compiled reading of Structs (``_struct_scan.c``); without a C compiler there is none.

It reads what our own writer makes and gives None for most else, which ``struct_reader`` and
``protobuf`` then read, or refuse. A property test holds that both give the same.
"""

from collections.abc import Collection, Container, Sequence
from types import ModuleType

from laredo_archive.codec import varint
from laredo_archive.codec.values import INTEGERS, JSONS, element_type
from laredo_model import line as lines_
from laredo_model.column import Column

module: ModuleType | None
try:
    from laredo_archive.codec.structs import _struct_scan as module
except ImportError:  # there was no C compiler when this was installed
    module = None

NewRows = tuple[
    bytes | None,
    bytes | None,
    Container[bytes],
    dict[bytes, bytes | None],
    tuple[bytes, ...],
    bytes,
]
"""Input and output of reading a diff: the first key and the one after the last, keys that are
known, the new rows by key, and for each column what is before its value and a byte that says
whether it is wanted (none: rows verbatim)."""

_FLOATS = {"float8": b"d", "float4": b"f"}


class StructScan:
    """Reads Structs with one table's columns, in their order."""

    def __init__(self, scan: ModuleType, columns: Sequence[Column], key_at: Sequence[int]) -> None:
        """``key_at``: the positions of the key's columns among ``columns``, in the key's order."""
        self._scan = scan
        self._all = [column.name for column in columns]
        self._names = tuple(map(entry_key, self._all))
        self._prefixes = tuple(lines_.names_prefix(self._all))
        self._types = b"".join(map(_types, columns))
        self._key_at = tuple(key_at)

    def row(self, data: bytes, at: int, stop: int) -> tuple[bytes, tuple[bytes, ...]] | None:
        """The line of the Struct from ``at`` to before ``stop``, and its key's fragments."""
        found: tuple[bytes, tuple[bytes, ...]] | None = self._scan.row(
            data, at, stop, self._names, self._prefixes, self._types, self._key_at
        )
        return found

    def columns(
        self, messages: list[bytes], wanted: Collection[str]
    ) -> list[tuple[str, bytes, bytes]] | None:
        """Of SnapshotRow messages the wanted columns: name, 32-bit offsets, fragments on end."""
        chosen = [name for name in self._all if name in wanted]
        is_wanted = bytes(name in wanted for name in self._all)
        found = self._scan.columns(messages, self._names, self._types, is_wanted)
        if found is None:
            return None
        return [(name, *buffers) for name, buffers in zip(chosen, found, strict=True)]


def scan(columns: Sequence[Column], key_at: Sequence[int] = ()) -> StructScan | None:
    """The compiled scan of rows with these columns; None if it isn't there."""
    # The elements of such a type may be arrays of another type than their own.
    if module is None or any(column.type.startswith("__") for column in columns):
        return None
    return StructScan(module, columns, key_at)


def entry_key(name: str) -> bytes:
    """First bytes of a member of this name, up to its Value's length."""
    raw = name.encode()
    return b"\x0a" + varint.varint(len(raw)) + raw + b"\x12"


def _types(column: Column) -> bytes:
    """The rule for a column's values, and that for the elements of its lists."""
    return _type(column.type) + _type(element_type(column.type))


def _type(name: str) -> bytes:
    if name in JSONS:
        return b"j"
    return b"i" if name in INTEGERS else _FLOATS.get(name, b"t")
