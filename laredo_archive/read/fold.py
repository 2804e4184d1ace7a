"""Merges base and diffs as streams in key order, without holding them in memory.

Sorted files are merged while they are read. Unsorted ones, or too many to have
open at the same time, are sorted first, in a temporary file if need be.
"""

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import NamedTuple

from laredo_archive.manifest.model import Artifact, FormatEntry
from laredo_archive.read.artifact_reader import ArtifactFiles, RowFields
from laredo_archive.read.external_sort import Sorter
from laredo_model.line import Action, Change

Rows = tuple[list[bytes], list[bytes]]
"""Keys and lines, in key order."""

OPEN_AT_ONCE = 48
_ROWS_AT_ONCE = 2000
_BYTES_AT_ONCE = 1024 * 1024


class OrderedChange(NamedTuple):
    """A change of one diff."""

    #: The diff's number.
    diff: int
    change: Change


class Timelines(NamedTuple):
    """Every key that diffs touch, in key order, with its changes in the diffs' order.

    ``start`` is the index of the last diff that truncates, before which base and
    diffs don't count; None if none truncates.
    """

    start: int | None
    keys: Iterator[tuple[bytes, list[OrderedChange]]]


def timelines(files: ArtifactFiles, diffs: Sequence[Artifact], shape: RowFields) -> Timelines:
    """Changes of each key by ``diffs``, which follow each other.

    :raises ArtifactDamaged: if a file differs from its entry, also while reading.

    :raises TemporarySpaceLacking: if there is too little disk space for sorting.
    """
    flagged = [index for index, diff in enumerate(diffs) if diff.truncate]
    start = flagged[-1] if flagged else None
    streams = [(index, files.changes(diff, shape)) for index, diff in enumerate(diffs)][start:]
    entries = [files.choose(diff)[1] for diff in diffs[start:]]
    is_sorted = all(entry.sorted for entry in entries)
    files.expect(entries)
    if is_sorted and len(streams) <= OPEN_AT_ONCE:
        return _merged(start, streams)
    return _sorted(start, streams)


def _merged(start: int | None, streams: list[tuple[int, Iterator[Change]]]) -> Timelines:
    opened: list[Iterator[tuple[bytes, int, Change]]] = []
    for index, stream in streams:
        first = next(stream, None)
        if first is None:
            continue
        if first.action is Action.TRUNCATE:
            start = index
            opened.clear()
            opened.append(_labelled(index, stream))
        else:
            opened.append(_labelled(index, chain([first], stream)))
    return Timelines(start, _grouped(heapq.merge(*opened)))


def _labelled(index: int, stream: Iterator[Change]) -> Iterator[tuple[bytes, int, Change]]:
    return ((change.key, index, change) for change in stream)


def _sorted(start: int | None, streams: list[tuple[int, Iterator[Change]]]) -> Timelines:
    sorter = Sorter()
    number = 0
    for index, stream in streams:
        for action, key, old, new in stream:
            if action is Action.TRUNCATE:
                start = index
                sorter.clear()
                continue
            size = len(key) + len(old or b"") + len(new or b"")
            sorter.add((key, number, index, int(action), old, new), size)
            number += 1
    records = (
        (key, index, Change(Action(action), key, old, new))
        for key, _, index, action, old, new in sorter.sorted()
    )
    return Timelines(start, _grouped(records))


def _grouped(
    changes: Iterable[tuple[bytes, int, Change]],
) -> Iterator[tuple[bytes, list[OrderedChange]]]:
    for key, steps in groupby(changes, key=lambda labelled: labelled[0]):
        yield key, [OrderedChange(index, change) for _, index, change in steps]


def newest(keys: Iterable[tuple[bytes, list[OrderedChange]]]) -> Iterator[Change]:
    """Each key's last change, which alone decides the key's row: the fold of every archive."""
    return (steps[-1].change for _, steps in keys)


def net(keys: Iterable[tuple[bytes, list[OrderedChange]]]) -> Iterator[Change]:
    """Each key's first old and last new; nothing for what ends as it began.

    Not for diffs of the original's, whose ``old`` may be a row from within the window.
    """
    for key, steps in keys:
        first, last = steps[0].change, steps[-1].change
        if first.action is Action.INSERT:
            if last.action is not Action.DELETE:
                yield Change(Action.INSERT, key, None, last.new)
        elif last.action is Action.DELETE:
            yield Change(Action.DELETE, key, first.old, None)
        elif first.old is None or first.old != last.new:
            yield Change(Action.UPDATE, key, first.old, last.new)


def base_rows(files: ArtifactFiles, base: Artifact, shape: RowFields) -> Iterator[Rows]:
    """A snapshot's rows in key order, sorted here if the file isn't.

    :raises ArtifactDamaged: where the file differs from its entry, or two rows have one key.
    :raises TemporarySpaceLacking: if sorting needs room that isn't there.
    """
    rows = files.rows(base, shape)
    entry = files.choose(base)[1]
    if entry.sorted:
        return rows
    sorter = Sorter()
    number = 0
    for keys, lines in rows:
        for key, line in zip(keys, lines, strict=True):
            sorter.add((key, number, line), len(key) + len(line))
            number += 1
    ordered = ((key, line) for key, _, line in sorter.sorted())
    return batched(_with_unique_keys(ordered, files, entry, shape))


def _with_unique_keys(
    rows: Iterator[tuple[bytes, bytes]],
    files: ArtifactFiles,
    entry: FormatEntry,
    shape: RowFields,
) -> Iterator[tuple[bytes, bytes]]:
    last: bytes | None = None
    for key, line in rows:
        if key == last:
            text = key.decode(errors="replace")
            files.refuse(entry, f"two of its rows have the key {text!r}{shape.advice}")
        last = key
        yield key, line


def batched(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[Rows]:
    """Rows, some thousand or about a megabyte at a time."""
    keys: list[bytes] = []
    lines: list[bytes] = []
    size = 0
    for key, line in rows:
        keys.append(key)
        lines.append(line)
        size += len(line)
        if len(keys) == _ROWS_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield keys, lines
            keys, lines, size = [], [], 0
    if keys:
        yield keys, lines


def applied(rows: Iterator[Rows], changes: Iterator[Change]) -> Iterator[Rows]:
    """The rows after the changes; both in key order."""
    change = next(changes, None)
    for keys, lines in rows:
        if change is None or change.key > keys[-1]:
            yield keys, lines
            continue
        new_keys: list[bytes] = []
        new_lines: list[bytes] = []
        at = 0
        while change is not None and change.key <= keys[-1]:
            end = bisect_left(keys, change.key, at)
            new_keys += keys[at:end]
            new_lines += lines[at:end]
            at = end + 1 if keys[end] == change.key else end
            if change.new is not None:
                new_keys.append(change.key)
                new_lines.append(change.new)
            change = next(changes, None)
        yield new_keys + keys[at:], new_lines + lines[at:]
    rest = changes if change is None else chain([change], changes)
    yield from batched((late.key, late.new) for late in rest if late.new is not None)
