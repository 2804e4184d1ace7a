"""Archives with a few things wrong: bytes, JSON values, files, as damage or an enemy makes them.

Everything follows from one seed, so that a case can be repeated.
"""

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from laredo_archive.codec import struct_rows

GOLDEN = Path(__file__).parent.parent / "golden" / "archives"
ARCHIVES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())

DEEP = "DEEP"
"""Stands for 100,000 brackets, which json can't write."""
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 1 << 31, 1 << 53, 1 << 63, (1 << 64) - 1, 1 << 70, 10**400,
    0.5, -0.0, 1e300, float("inf"), float("nan"), "", "0", "x", "0/10", "0/20", "FFFFFFFF/FFFFFFFF",
    "1/x", "2026-02-30T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59",
    "../x", "/etc/passwd", "a//b", "epoch=1", "manifest.json", "\ud800", "\x00", "\x1b[2J[bold]",
    "é" * 300, "x" * 70_000, [], [[]], [None], [1, 2], ["", 0], {}, {"": None}, {"name": 1},
    [{"name": "id", "type": "int4", "key_ordinal": 1}], [{"name": "id"}], "snapshot", "diff",
    "jsonl", "protobuf", "parquet", "text", "_text", "_json", "jsonb", "int4", "numeric", "box",
    "timestamptz", "_int4", "float8", DEEP,
]  # fmt: skip
TEXTS = [
    b"", b"\n", b"{", b"}", b"{}", b"[", b"]", b'"', b"\\", b"\\u", b"\\ud800", b"null", b"0", b"-",
    b"1e999", b"1" * 5000, b"\x00", b"\xff", b"\xed\xa0\x80", b"\xc3", b":", b",", b'"id":',
    b"{" * 3000,
    b"[" * 3000, b'{"action":"TRUNCATE"}\n', b'{"action":"UPDATE","key":"1"}\n', b'"key":',
    b"\x1b[2J",
    b" ", b"\r\n", b'{"id":1}\n', b"\x80" * 11, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
]  # fmt: skip


class Mutant:
    """A golden archive in ``directory``, changed; ``log`` says how."""

    def __init__(self, chance: random.Random, directory: Path) -> None:
        self.chance = chance
        self.name = self.chance.choice(ARCHIVES)
        self.path = directory / self.name
        self.log: list[str] = []
        shutil.copytree(GOLDEN / self.name, self.path)
        self._consistent = self.chance.random() < 0.7
        for _ in range(self.chance.choice([1, 1, 1, 2, 3])):
            self._mutate()

    def __str__(self) -> str:
        return f"{self.name}: {'; '.join(self.log)}"

    @property
    def _manifest(self) -> Path:
        return self.path / "manifest.json"

    def _mutate(self) -> None:
        chance = self.chance
        kinds: list[tuple[Callable[[], None], int]] = [
            (self._json_value, 8), (self._json_bytes, 2), (self._object_bytes, 5),
            (self._object_line, 4), (self._object_varint, 2), (self._files, 1),
        ]  # fmt: skip
        chance.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]()

    # The manifest.

    def _json_value(self) -> None:
        try:
            content = json.loads(self._manifest.read_bytes())
        except (ValueError, RecursionError):
            return
        places = list(_places(content))
        if not places:
            return
        holder, key = self.chance.choice(places)
        how = self.chance.choice(["replace", "replace", "replace", "delete", "copy", "double"])
        if how == "delete":
            del holder[key]
            self.log.append(f"manifest: {key!r} deleted")
        elif how == "copy":
            other, other_key = self.chance.choice(places)
            holder[key] = other[other_key]
            self.log.append(f"manifest: {key!r} as {other_key!r}")
        elif how == "double" and isinstance(holder, list):
            holder.insert(key, holder[key])
            self.log.append(f"manifest: item {key} twice")
        else:
            value = self.chance.choice(VALUES)
            holder[key] = value
            self.log.append(f"manifest: {key!r} = {value!r:.60}")
        try:
            text = json.dumps(content)
        except (ValueError, RecursionError):
            return
        self._manifest.write_text(text.replace(f'"{DEEP}"', "[" * 100_000 + "]" * 100_000))

    def _json_bytes(self) -> None:
        self._change(self._manifest)

    # Objects.

    def _objects(self) -> list[Path]:
        return sorted(p for p in self.path.rglob("*") if p.is_file() and p != self._manifest)

    def _object_bytes(self) -> None:
        if objects := self._objects():
            found = self.chance.choice(objects)
            self._change(found)
            self._made_consistent(found)

    def _object_line(self) -> None:
        """A line of JSON with another value in it, or a line of another file."""
        lines = [path for path in self._objects() if path.suffix == ".jsonl"]
        if not lines:
            return
        path = self.chance.choice(lines)
        rows = path.read_bytes().split(b"\n")
        at = self.chance.randrange(len(rows))
        try:
            row = json.loads(rows[at])
            holder, key = self.chance.choice(list(_places(row)))
            value = self.chance.choice(VALUES)
            holder[key] = value
            text = json.dumps(row, separators=(",", ":"), ensure_ascii=self.chance.random() < 0.5)
            rows[at] = text.replace(f'"{DEEP}"', "[" * 20_000 + "]" * 20_000).encode(
                errors="surrogatepass"
            )
            self.log.append(f"{path.name} line {at}: {key!r} = {value!r:.60}")
        except (ValueError, IndexError, RecursionError):
            rows[at] = self.chance.choice(TEXTS)
            self.log.append(f"{path.name} line {at} = {rows[at]!r:.60}")
        path.write_bytes(b"\n".join(rows))
        self._made_consistent(path)

    def _object_varint(self) -> None:
        """A protobuf length that is another one."""
        messages = [path for path in self._objects() if path.suffix == ".pb"]
        if not messages:
            return
        path = self.chance.choice(messages)
        data = bytearray(path.read_bytes())
        at = self.chance.randrange(len(data)) if data else 0
        number = self.chance.choice([0, 1, 127, 128, 1 << 20, 1 << 31, 1 << 32, 1 << 60, 1 << 70])
        data[at : at + 1] = struct_rows.varint(number)
        self.log.append(f"{path.name} byte {at}: varint {number}")
        path.write_bytes(data)
        self._made_consistent(path)

    def _files(self) -> None:
        objects = self._objects()
        if len(objects) < 2:
            return
        one, other = self.chance.sample(objects, 2)
        how = self.chance.choice(["swap", "delete", "empty", "copy"])
        if how == "delete":
            one.unlink()
        elif how == "empty":
            one.write_bytes(b"")
        else:
            first, second = one.read_bytes(), other.read_bytes()
            one.write_bytes(second)
            if how == "swap":
                other.write_bytes(first)
                self._made_consistent(other)
        self.log.append(f"{how} {one.name}, {other.name}")
        if one.exists():
            self._made_consistent(one)

    def _change(self, path: Path) -> None:
        data = bytearray(path.read_bytes())
        at = self.chance.randrange(len(data) + 1)
        end = min(len(data), at + self.chance.choice([0, 1, 1, 2, 8, 100, 10_000]))
        how = self.chance.choice(["flip", "cut", "insert", "remove", "repeat"])
        if how == "flip" and at < len(data):
            data[at] ^= 1 << self.chance.randrange(8)
        elif how == "cut":
            del data[at:]
        elif how == "insert":
            data[at:end] = self.chance.choice(TEXTS)
        elif how == "remove":
            del data[at:end]
        else:
            data[at:at] = data[at:end]
        self.log.append(f"{path.name}: {how} at {at}..{end}")
        path.write_bytes(data)

    def _made_consistent(self, path: Path) -> None:
        """The manifest says that these are the right bytes, so that readers go on."""
        if not self._consistent:
            return
        try:
            content = json.loads(self._manifest.read_bytes())
            entries = [
                entry
                for artifact in content["artifacts"]
                for entry in artifact["formats"].values()
                if entry["key"].endswith(f"{path.parent.name}/{path.name}")
            ]
            for entry in entries:
                data = path.read_bytes()
                entry |= {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                entry.pop("blocks", None)
            self._manifest.write_text(json.dumps(content))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every member of every object and list: what holds it, and its key there."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield value, key
        yield from _places(inner)
