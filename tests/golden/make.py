"""Makes the golden archives from what is written by hand: ``python -m tests.golden.make``.

A truth's description says for each artifact where it ends; what a diff holds follows from
the states before and after it. The manifest is put together here, field by field, as
docs/archive-format.md says.
"""

import gzip
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.golden import frames, original, parquet
from tests.support.golden.truth import ARCHIVES, Truth, all_truths, boundary
from tests.support.golden.written import FORMATS, Change, Lines, changes

DAY = "2026-06-03T"
BUCKET = "s3://golden-archives/"
"""Location in the manifests; the archives are read elsewhere, as copies are."""
Files = dict[str, bytes]


def made(truth: Truth) -> Files:
    """The archive's files by their path below the destination."""
    if truth.is_originals:
        states = [truth.lines(boundary) for boundary in truth.boundaries]
        return dict(original.written(truth.name, truth.described, states))
    return _Making(truth).files()


@dataclass(frozen=True)
class _Step:
    """Step that an artifact ends: its start, the states at both ends, and the table."""

    start: str
    before: Lines
    after: Lines
    history: str | None
    columns: Any


class _Making:
    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._described = truth.described
        self._adds: bool = self._described.get("additions", True)
        self._sorted: bool = self._described.get("sorted", True)
        self._files: Files = {}

    def files(self) -> Files:
        artifacts = list(self._artifacts())
        for merge in self._described.get("merges", []):
            artifacts = self._merged(artifacts, merge)
        manifest = {
            "manifest_version": 1,
            "table": self._described["table"],
            "epoch": artifacts[-1]["epoch"] if artifacts else 0,
            "updated_at": f"{DAY}12:00:00Z",
            "head_position": artifacts[-1]["to_position"] if artifacts else None,
            "artifacts": artifacts,
            **self._described.get("manifest", {}),
        }
        text = json.dumps(manifest, indent=1, ensure_ascii=False)
        self._files[f"{self._truth.name}/manifest.json"] = f"{text}\n".encode()
        return self._files

    def _artifacts(self) -> Iterator[dict[str, Any]]:
        step = _Step("", {}, {}, None, None)
        for described in self._truth.artifacts:
            step = replace(
                step,
                before=step.after,
                after=self._truth.state(boundary(described)),
                history=described.get("history", step.history),
            )
            if described["kind"] == "snapshot":
                columns = described.get("columns", self._described.get("columns"))
                step = replace(step, columns=columns)
                yield self._snapshot(described, step)
            else:
                yield self._diff(described, step)
            step = replace(step, start=described["to"])

    def _merged(
        self, artifacts: list[dict[str, Any]], merge: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """The list with one diff in the place of those that lead where it leads."""
        start, end = merge["from"], merge["to"]
        first = next(n for n, each in enumerate(artifacts) if each["from_position"] == start)
        last = next(
            n for n, each in enumerate(artifacts) if n >= first and each["to_position"] == end
        )
        diffs = artifacts[first : last + 1]
        described = {each["to"]: each for each in self._truth.artifacts}
        states = {place: self._truth.state(boundary(each)) for place, each in described.items()}
        base = next(each for each in artifacts if each["kind"] == "snapshot")
        columns = self._described["columns"]
        step = _Step(start, states[start], states[end], base["history"], columns)
        truncates = any(diff["truncate"] for diff in diffs)
        whole = self._diff({**described[end], "truncate": truncates, **merge}, step)
        count = sum(diff.get("parts", {"count": 1})["count"] for diff in diffs)
        listed = (
            {"file": self._parts_file(whole, diffs)} if merge.get("in_file") else {"diffs": diffs}
        )
        whole["parts"] = {"count": count, **listed}
        return [*artifacts[:first], whole, *artifacts[last + 1 :]]

    def _parts_file(self, whole: Mapping[str, Any], diffs: list[dict[str, Any]]) -> dict[str, Any]:
        name = f"parts-{_name(whole['from_position'])}-{_name(whole['to_position'])}.json.gz"
        key = f"{self._truth.name}/epoch={whole['epoch']}/{name}"
        text = json.dumps({"parts_version": 1, "diffs": diffs}, indent=1).encode()
        there = ARCHIVES / key
        data = gzip.compress(text, mtime=0)
        if there.exists() and gzip.decompress(there.read_bytes()) == text:
            data = there.read_bytes()  # another zlib's, perhaps
        self._files[key] = data
        entry = self._entry(key, [])
        return {name: entry[name] for name in ("uri", "key", "size_bytes", "sha256")}

    def _snapshot(self, described: Mapping[str, Any], step: "_Step") -> dict[str, Any]:
        rows = step.after
        records = [(key, lambda form, line=line: form.row(line)) for key, line in rows.items()]
        name = f"snapshot-{_name(described['to'])}"
        entry = {
            "kind": "snapshot",
            "epoch": described["epoch"],
            "from_position": None,
            "to_position": described["to"],
            "created_at": f"{DAY}{described['time']}.5Z",
            "row_count": len(rows),
            "formats": self._formats(described, name, records, step),
        }
        if self._adds:
            entry |= self._state(described, step)
            entry["continues"] = described.get("continues", False)
            entry["columns"] = _columns(step.columns, self._truth.key_fields)
            entry["key_fields"] = self._truth.key_fields
        return entry | described.get("more", {})

    def _diff(self, described: Mapping[str, Any], step: "_Step") -> dict[str, Any]:
        truncates = described.get("truncate", False)
        found = changes({} if truncates else step.before, step.after)
        records = [(change.key, _record_of(change)) for change in found]
        entry = {
            "kind": "diff",
            "epoch": described["epoch"],
            "from_position": step.start,
            "to_position": described["to"],
            "created_at": f"{DAY}{described['time']}.5Z",
            "change_count": len(found),
            "formats": self._formats(
                described,
                f"diff-{_name(step.start)}-{_name(described['to'])}",
                records,
                step,
                truncates=truncates,
            ),
        }
        if self._adds:
            entry |= self._state(described, step) | {"truncate": truncates}
        return entry | described.get("more", {})

    def _state(self, described: Mapping[str, Any], step: "_Step") -> dict[str, Any]:
        return {
            "history": step.history,
            "to_time": f"{DAY}{described['time']}Z",
            "rows": len(step.after),
            "state_checksum": checksum(step.after.values()),
        }

    def _formats(
        self,
        described: Mapping[str, Any],
        name: str,
        records: list[Any],
        step: "_Step",
        *,
        truncates: bool = False,
    ) -> dict[str, Any]:
        if not self._sorted:
            records = records[::-1]
        directory = f"epoch={described.get('written_in_epoch', described['epoch'])}"
        entries: dict[str, Any] = {}
        columns = step.columns
        for format_id in described.get("formats", self._described["formats"]):
            if format_id == "parquet":
                key = f"{self._truth.name}/{directory}/{name}.parquet"
                entries[format_id] = self._parquet(key, step)
                continue
            types = None if columns is None else {column[0]: column[1] for column in columns}
            form = FORMATS[format_id.removesuffix(frames.SUFFIX)](
                types, blanks=self._described.get("blanks", False)
            )
            key = f"{self._truth.name}/{directory}/{name}{form.extension}"
            pieces = [form.truncation()] if truncates else []
            at, splits = sum(map(len, pieces)), []
            every = self._described.get("splits_every", 0)
            for number, (row_key, encode) in enumerate(records):
                if every and number % every == 0:
                    splits.append([row_key, at])
                pieces.append(encode(form))
                at += len(pieces[-1])
            data = b"".join(pieces)
            if format_id.endswith(frames.SUFFIX):
                key += frames.SUFFIX
                there = (ARCHIVES / key).read_bytes() if (ARCHIVES / key).exists() else b""
                data, splits = frames.written(data, splits, there)
            self._files[key] = data
            entries[format_id] = self._entry(key, splits)
        if "unknown_format" in described:
            key = f"{self._truth.name}/{directory}/{name}.{described['unknown_format']}"
            self._files[key] = b"what only a later version knows\n"
            entries[described["unknown_format"]] = self._entry(key, [])
        return entries

    def _parquet(self, key: str, step: "_Step") -> dict[str, Any]:
        every = self._described["splits_every"]
        data = parquet.written(list(step.after.values()), step.columns, every)
        there = ARCHIVES / key
        if there.exists() and parquet.same_content(data, there.read_bytes()):
            data = there.read_bytes()  # another pyarrow's, perhaps
        self._files[key] = data
        first_keys = list(step.after)[::every]
        splits = zip(first_keys, parquet.row_groups(data), strict=True)
        return self._entry(key, [list(split) for split in splits]) | {"exact": False}

    def _entry(self, key: str, splits: list[list[Any]]) -> dict[str, Any]:
        data = self._files[key]
        entry: dict[str, Any] = {"uri": BUCKET + key, "size_bytes": len(data), "key": key}
        if self._adds:
            entry |= {"sha256": hashlib.sha256(data).hexdigest(), "sorted": self._sorted}
            if self._sorted and len(splits) > 1:
                entry["splits"] = splits
        return entry


def _record_of(change: Change) -> Any:
    return lambda form: form.change(change)


def _name(position: str) -> str:
    return position.replace("/", "_")


def _columns(columns: Any, key_fields: list[str]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "type": type_name,
            "type_modifier": modifier,
            "nullable": name not in key_fields,
            "ordinal": ordinal,
            "key_ordinal": key_fields.index(name) + 1 if name in key_fields else None,
        }
        for ordinal, (name, type_name, modifier) in enumerate(columns, start=1)
    ]


def checksum(lines: Any) -> str:
    """The sum of the lines' md5, modulo 2^128."""
    total = sum(int(hashlib.md5(line.encode()).hexdigest(), 16) for line in lines)
    return f"{total % 2**128:032x}"


def write(directory: Path = ARCHIVES) -> int:
    """All archives, anew; gives how many files there are."""
    shutil.rmtree(directory, ignore_errors=True)
    files = {path: data for truth in all_truths() for path, data in made(truth).items()}
    for path, data in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(data)
    return len(files)


if __name__ == "__main__":
    sys.stdout.write(f"{write()} files in {ARCHIVES}\n")
