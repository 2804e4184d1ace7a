"""Rows and diffs of archives that the original program wrote (docs/archive-format.md).

Its keys are Go's %v of values whose types differ between a base and the diffs after it, so keys
are computed here, from the key's columns. A diff is what its writer held for each key, in no order:
the TRUNCATE may be anywhere, an action is the last one, and an UPDATE that changes the key
leaves the row of the former key to be removed.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import orjson

from laredo_archive.codec.row_keys import compact
from laredo_archive.codec.struct_rows import NUMBER, UNKNOWN, number_text
from laredo_archive.read.external_sort import Sorter
from laredo_model import key as keys_
from laredo_model import line as lines_
from laredo_model.errors import BadLine
from laredo_model.line import TRUNCATION, Action, Change

NO_KEY = b"<nil>"
"""The key that it writes for a row without the column that it takes for the key."""
_ESCAPE = re.compile(rb"\\(?:u(003[cCeE]|0026|202[89])|.)", re.DOTALL)
_INTEGER = re.compile(rb"-?(?:0|[1-9][0-9]*)\Z")
_OWN, _MOVED = 0, 1


def plain(line: bytes) -> bytes:
    """The line without Go's escapes of <, >, &, U+2028 and U+2029."""
    if b"\\u" not in line:
        return line
    return _ESCAPE.sub(lambda m: chr(int(m[1], 16)).encode() if m[1] else m[0], line)


def key_of(line: bytes, key_fields: Sequence[str]) -> bytes:
    """The row's key, by its values' text: 14 and "14" are the same.

    :raises ValueError: if it isn't a row, or lacks a key column.
    """
    try:
        values = dict(lines_.items(line))
    except BadLine:
        values = dict(lines_.items(compact(line)))
    try:
        found = [values[orjson.dumps(name)].strip() for name in key_fields]
    except KeyError as missing:
        raise BadLine(
            f"the row has no key column {missing.args[0].decode()}: {line[:80]!r}"
        ) from None
    if len(found) == 1:
        return keys_.of_fragment(_number(found[0]))
    return b"[" + b",".join(map(_in_array, found)) + b"]"


def keys_of(lines: Iterable[bytes], key_fields: Sequence[str]) -> list[bytes]:
    """The keys of rows."""
    return [key_of(line, key_fields) for line in lines]


def _number(fragment: bytes) -> bytes:
    if fragment[:1] == b'"' or _INTEGER.match(fragment) or not NUMBER.match(fragment):
        return fragment
    return number_text(float(fragment), UNKNOWN)


def _in_array(fragment: bytes) -> bytes:
    inside = fragment[1:-1]
    if fragment[:1] == b'"' and NUMBER.match(inside):
        return inside
    return _number(fragment)


def resolved(changes: Iterable[Change], key_fields: Sequence[str]) -> Iterator[Change]:
    """A diff's changes in key order, one a key, the TRUNCATE first; ``changes`` are the file's.

    :raises ValueError: if a row lacks a key column, or changes of several rows have one key.
    :raises TemporarySpaceLacking: if there is too little disk space for sorting.
    """
    sorter = Sorter()
    number = 0
    truncated = False
    for action, key, old, new in changes:
        if action is Action.TRUNCATE:
            truncated = True
            continue
        for record_key, rank, record in _records(key, old, new, key_fields):
            sorter.add(
                (record_key, number, rank, *record), sum(len(part or b"") for part in record)
            )
            number += 1
    if truncated:
        yield TRUNCATION
    for key, records in groupby(sorter.sorted(), key=lambda record: record[0]):
        change = _net_change(key, [record[2:] for record in records])
        if not truncated:
            yield change
        elif change.new is not None:
            yield Change(Action.INSERT, key, None, change.new)


_Rows = tuple[bytes | None, bytes | None]


def _records(
    key: bytes, old: bytes | None, new: bytes | None, key_fields: Sequence[str]
) -> Iterator[tuple[bytes, int, _Rows]]:
    old = None if old is None else plain(old)
    if new is None:
        if old is None:
            raise BadLine(f"a change of the key {key!r} without a row")
        yield _known(key, old, key_fields), _OWN, (old, None)
        return
    new = plain(new)
    new_key = _known(key, new, key_fields)
    try:
        old_key = new_key if old is None else key_of(old, key_fields)
    except BadLine:
        old_key = new_key  # an old row that isn't whole
    if old_key == new_key:
        yield new_key, _OWN, (old, new)
        return
    yield new_key, _OWN, (None, new)
    yield old_key, _MOVED, (old, None)


def _known(key: bytes, line: bytes, key_fields: Sequence[str]) -> bytes:
    computed = key_of(line, key_fields)
    if key == NO_KEY != computed:
        raise BadLine(
            "its changes have the key <nil>: the original's writer was configured with a key column"
            " that the table doesn't have (key_fields), so it kept only one change of all rows. The"
            " others are lost; only its bases can be read"
        )
    return computed


def _net_change(key: bytes, records: Sequence[tuple[int, bytes | None, bytes | None]]) -> Change:
    """Net change of one key.

    A row that also moved to another key may have moved before or after its record was written. If
    it moved after, the key is gone.
    """
    own = [(old, new) for rank, old, new in records if rank == _OWN]
    moved = [old for rank, old, _ in records if rank == _MOVED]
    if not own:
        return Change(Action.DELETE, key, moved[-1], None)
    old, new = own[-1]
    if new is None or new in moved:
        return Change(Action.DELETE, key, old if new is None or old is not None else new, None)
    return Change(Action.INSERT if old is None else Action.UPDATE, key, old, new)
