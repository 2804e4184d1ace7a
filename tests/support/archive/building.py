"""Archives for the reader's tests, put together by hand: also such as our writer never writes."""

import hashlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from laredo_archive import codec
from laredo_model import position as positions
from laredo_model.checksum import StateChecksum
from laredo_model.column import Column
from laredo_model.line import Change
from tests.support.archive.rows import changes

START = datetime(2026, 6, 3, 12, tzinfo=UTC)
HISTORY = "7300000000000000001:1:16384"
COLUMNS = (
    Column("id", "int8", -1, False, 1, 1),
    Column("name", "text", -1, True, 2),
    Column("doc", "jsonb", -1, True, 3),
)
State = dict[bytes, bytes]


def row(number: int, name: str, doc: str = "null") -> tuple[bytes, bytes]:
    line = f'{{"id":{number},"name":{json.dumps(name, ensure_ascii=False)},"doc":{doc}}}'
    return b"%d" % number, line.encode()


def state(*rows: tuple[bytes, bytes]) -> State:
    return dict(sorted(rows))


@dataclass
class Builder:
    """Writes an archive into ``directory``/``prefix``, artifact by artifact.

    ``plain``: as the original tool writes them, without any of the added fields.
    ``base_formats``: the bases', if they have others than the diffs.
    """

    directory: Path
    prefix: str = "users/"
    columns: tuple[Column, ...] = COLUMNS
    key_fields: tuple[str, ...] = ("id",)
    formats: tuple[str, ...] = ("jsonl",)
    base_formats: tuple[str, ...] = ()
    plain: bool = False
    history: str = HISTORY
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    seen: int | None = None
    seen_at: datetime | None = None
    epoch: int = 0
    head: int = 0
    shuffled: bool = False

    def base(self, position: int, rows: State, *, continues: bool = True) -> "Builder":
        """A new epoch's snapshot."""
        self.epoch += 1
        entry = self._artifact("snapshot", None, position, rows)
        entry["row_count"] = len(rows)
        for format_id in self.base_formats or self.formats:
            path = self._path(f"snapshot-{positions.object_name(position)}", format_id)
            with path.open("wb") as sink:
                encoder = codec.snapshot_encoder(format_id, self.columns, sink)
                keys = list(reversed(rows)) if self.shuffled else list(rows)
                for key in keys:
                    encoder.write([key], [rows[key]])
                encoded = encoder.close()
            entry["formats"][format_id] = self._entry(path, encoded)
            if format_id == "parquet":
                entry["formats"][format_id]["exact"] = False
        if not self.plain:
            entry |= {
                "continues": continues,
                "columns": [column.to_json() for column in self.columns],
                "key_fields": list(self.key_fields),
            }
        return self._add(entry, position, rows)

    def diff(self, position: int, rows: State, *, truncate: bool = False) -> "Builder":
        """Add a diff from the state before to ``rows``."""
        before = {} if truncate else self.states[-1]
        return self.diff_of(position, rows, changes(before, rows), truncate=truncate)

    def diff_of(
        self, position: int, rows: State, written: list[Change], *, truncate: bool = False
    ) -> "Builder":
        entry = self._artifact("diff", self.head, position, rows)
        entry["change_count"] = len(written)
        name = f"diff-{positions.object_name(self.head)}-{positions.object_name(position)}"
        for format_id in self.formats:
            path = self._path(name, format_id)
            with path.open("wb") as sink:
                encoder = codec.diff_encoder(format_id, self.columns, sink)
                if truncate:
                    encoder.truncate()
                encoder.write(reversed(written) if self.shuffled else written)
                encoded = encoder.close()
            entry["formats"][format_id] = self._entry(path, encoded)
        if not self.plain:
            entry["truncate"] = truncate
        return self._add(entry, position, rows)

    def write(self) -> Path:
        """The manifest; gives the directory that holds it."""
        manifest: dict[str, Any] = {
            "manifest_version": 1,
            "table": "public.users",
            "epoch": self.epoch,
            "updated_at": self._time(self.head),
            "head_position": positions.text(self.head) if self.artifacts else None,
            "artifacts": self.artifacts,
        }
        if not self.plain:
            manifest["history"] = self.history
        if self.seen is not None:
            manifest["seen_position"] = positions.text(self.seen)
        if self.seen_at is not None:
            manifest["seen_at"] = self.seen_at.isoformat()
        path = self.directory / f"{self.prefix}manifest.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(manifest))
        return path.parent

    def _artifact(self, kind: str, start: int | None, end: int, rows: State) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "kind": kind,
            "epoch": self.epoch,
            "from_position": None if start is None else positions.text(start),
            "to_position": positions.text(end),
            "created_at": self._time(end + 5),
            "formats": {},
        }
        if not self.plain:
            checksum = StateChecksum()
            checksum.add(list(rows.values()))
            entry |= {
                "history": self.history,
                "to_time": self._time(end),
                "rows": checksum.rows,
                "state_checksum": checksum.hex(),
            }
        return entry

    def _add(self, entry: dict[str, Any], position: int, rows: State) -> "Builder":
        self.artifacts.append(entry)
        self.states.append(dict(sorted(rows.items())))
        self.head = position
        return self

    def _time(self, position: int) -> str:
        return (START + timedelta(seconds=position)).isoformat()

    def _path(self, name: str, format_id: str) -> Path:
        extension = format_id.replace("protobuf", "pb")
        path = self.directory / f"{self.prefix}epoch={self.epoch}" / f"{name}.{extension}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _entry(self, path: Path, encoded: codec.EncodedFile) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "uri": path.as_uri(),
            "size_bytes": path.stat().st_size,
            "key": path.relative_to(self.directory).as_posix(),
        }
        if not self.plain:
            assert encoded.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
            entry |= {"sha256": encoded.sha256, "sorted": encoded.sorted}
            if encoded.splits:
                entry["splits"] = [list(split) for split in encoded.splits]
                entry["blocks"] = [list(block) for block in encoded.blocks]
        return entry
