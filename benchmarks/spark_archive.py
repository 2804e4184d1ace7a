"""An archive as the snapshotter writes it: ``python -m benchmarks.spark_archive DIRECTORY``.

The rows are those of ``bench_table``; prints what was written as a JSON line.
"""

import hashlib
import random
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import structlog

from benchmarks import bench_table
from benchmarks.counting_client import tell
from laredo_archive.codec import struct_rows
from laredo_archive.storage.local import LocalDestination
from laredo_archive.write.table_archive import TableArchive
from laredo_model import position as positions
from laredo_model.checksum import StateChecksum
from laredo_model.column import Column
from laredo_model.line import Action, Change
from laredo_model.position import History, Position

PREFIX = f"{bench_table.QUALIFIED}/"
"""Of the objects' keys, below the directory."""
HISTORY = History(7300, 1, 5)
DIFF_FORMATS = ("jsonl", "protobuf")
BASE_FORMATS = (*DIFF_FORMATS, "parquet")
_FIRST = 16
"""The base's position."""


def boundary(diffs: int) -> str:
    """The position after so many diffs."""
    return positions.text(Position(_FIRST + diffs))


BASE = boundary(0)
_BYTES_AT_ONCE, _ROW_BYTES = 560_000, 280
_PRICE = ((12 << 16) | 2) + 4
_CREATED, _UPDATED = datetime(2024, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC)
_INSERTED, _DELETED = 0.1, 0.1
"""Shares of all changes; the others are updates."""


def _columns() -> tuple[Column, ...]:
    typed = {
        "id": "int8", "n": "int4", "name": "text", "note": "text", "price": "numeric",
        "ratio": "float8", "active": "bool", "created": "timestamptz", "updated": "timestamptz",
        "doc": "jsonb",
    }  # fmt: skip
    required = ("id", "n")
    return tuple(
        Column(
            name,
            type_name,
            _PRICE if type_name == "numeric" else -1,
            name not in required,
            ordinal,
            1 if ordinal == 1 else None,
        )
        for ordinal, (name, type_name) in enumerate(typed.items(), 1)
    )


COLUMNS = _columns()


def line(number: int, version: int, value_bytes: int = 0) -> bytes:
    """A row's line after so many updates; ``value_bytes``: the length of its note, if that isn't
    short."""
    if value_bytes:
        note = random.Random(number).randbytes(value_bytes // 2).hex()
    else:
        note = hashlib.md5(b"%d" % number, usedforsecurity=False).hexdigest()
    ratio = struct_rows.text(number / 7.0, struct_rows.FLOAT8_DIGITS).decode()
    created = (_CREATED + timedelta(seconds=number)).isoformat()
    updated = (_UPDATED + timedelta(seconds=number, milliseconds=version)).isoformat()
    price = number % 100000 / 100
    return (
        f'{{"id":{number},"n":{number % 1000 + version},"name":"customer {number}",'
        f'"note":"note {note} of row","price":"{price:.2f}","ratio":{ratio},'
        f'"active":{"true" if number % 2 == 0 else "false"},"created":"{created}",'
        f'"updated":"{_shortened(updated)}","doc":{{"city": "city {number % 500}",'
        f' "tags": ["a", {number % 10}]}}}}'
    ).encode()


def _shortened(stamp: str) -> str:
    """PostgreSQL prints no zeros at a fraction's end."""
    head, point, fraction = stamp.removesuffix("+00:00").partition(".")
    return f"{head}{point}{fraction.rstrip('0')}+00:00"


def in_key_order(last: int) -> Iterator[int]:
    """The numbers from 1 on, as their texts are sorted."""
    number = 1
    for _ in range(last):
        yield number
        if number * 10 <= last:
            number *= 10
        else:
            while number % 10 == 9 or number == last:
                number //= 10
            number += 1


class Table:
    """The table as its changes are made, with its checksum; only what was changed is held.

    ``churn``: the share of the keys that change, which are adjacent; 1: any keys change, and new
    ones come.
    """

    def __init__(self, rows: int, churn: float = 1.0, value_bytes: int = 0) -> None:
        self.checksum = StateChecksum()
        self._rows = rows
        self._churn = churn
        self._value_bytes = value_bytes
        self._next = rows + 1
        self._versions: dict[int, int | None] = {}
        self._random = random.Random(42)

    def lines(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Keys and lines before any change, in key order."""
        numbers = in_key_order(self._rows)
        while some := list(islice(numbers, self._rows_at_once)):
            yield [b"%d" % number for number in some], [self._line(number, 0) for number in some]

    def changes(self, count: int) -> list[Change]:
        """Net changes of so many keys at random, in key order."""
        made: dict[bytes, Change] = {}
        while len(made) < count:
            number = self._chosen()
            if b"%d" % number not in made:
                made[b"%d" % number] = self._change(number)
        found = [made[key] for key in sorted(made)]
        self.checksum.remove([change.old for change in found if change.old is not None])
        self.checksum.add([change.new for change in found if change.new is not None])
        return found

    @property
    def _rows_at_once(self) -> int:
        return max(1, _BYTES_AT_ONCE // (self._value_bytes + _ROW_BYTES))

    def _line(self, number: int, version: int) -> bytes:
        return line(number, version, self._value_bytes)

    def _chosen(self) -> int:
        if self._churn < 1:
            middle = self._rows // 2
            return self._random.randint(middle, middle + int(self._rows * self._churn))
        if self._random.random() >= _INSERTED:
            return self._random.randint(1, self._rows)
        self._next += 1
        return self._next - 1

    def _change(self, number: int) -> Change:
        version = self._versions.get(number, 0 if number <= self._rows else None)
        old = None if version is None else self._line(number, version)
        deleted = version is not None and self._random.random() < _DELETED
        after = None if deleted else (version or 0) + 1
        self._versions[number] = after
        new = None if after is None else self._line(number, after)
        action = Action.INSERT if old is None else Action.DELETE if deleted else Action.UPDATE
        return Change(action, b"%d" % number, old, new)


def write(
    directory: Path,
    table: Table,
    diffs: int,
    changes: int,
    *,
    formats: Sequence[str] = BASE_FORMATS,
    diff_formats: Sequence[str] = DIFF_FORMATS,
) -> None:
    """The table's base in these formats, and its diffs."""
    with opened(directory) as archive:
        with archive.snapshot(
            position=Position(_FIRST),
            history=HISTORY,
            columns=COLUMNS,
            key_fields=["id"],
            formats=formats,
        ) as upload:
            for keys, lines in table.lines():
                upload.write(keys, lines)
                table.checksum.add(lines)
            archive.commit_base(upload.finish(_UPDATED), continues=False)
        for _ in range(diffs):
            commit(archive, table, changes // diffs, diff_formats)


def opened(directory: Path) -> TableArchive:
    """The archive in ``directory``, to write to."""
    return TableArchive.open(
        [LocalDestination(directory)], bench_table.QUALIFIED, key_prefix=PREFIX
    )


def commit(
    archive: TableArchive, table: Table, changes: int, formats: Sequence[str] = DIFF_FORMATS
) -> None:
    """The next diff, with so many changes."""
    head = archive.head
    assert head is not None
    position, made = head.position, table.changes(changes)
    archive.commit_diff(
        iter(made),
        from_position=position,
        to_position=Position(position + 1),
        to_time=_UPDATED + timedelta(seconds=position),
        rows=table.checksum.rows,
        checksum=table.checksum.hex(),
        formats=formats,
    )


def _arguments() -> Namespace:
    parser = ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--diffs", type=int, default=200)
    parser.add_argument("--changes", type=int, default=500_000)
    parser.add_argument("--churn", type=float, default=1.0)
    parser.add_argument("--value-bytes", type=int, default=0)
    parser.add_argument("--formats", nargs="+", default=BASE_FORMATS)
    parser.add_argument("--diff-formats", nargs="+", default=DIFF_FORMATS)
    return parser.parse_args()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    given = _arguments()
    made = Table(given.rows, given.churn, given.value_bytes)
    write(
        given.directory,
        made,
        given.diffs,
        given.changes,
        formats=given.formats,
        diff_formats=given.diff_formats,
    )
    tell(rows=made.checksum.rows)
