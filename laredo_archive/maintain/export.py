"""Exports a table at a boundary as one file: to load elsewhere, or to keep.

jsonl, protobuf and parquet are the archive's own snapshot formats; csv is for
``COPY ... FROM ... WITH (FORMAT csv, HEADER)``, which restores the same rows.
"""

import io
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import orjson

from laredo_archive import codec
from laredo_archive.codec.row_keys import STRING, splitter
from laredo_archive.errors import ArtifactDamaged, ExportRefused
from laredo_archive.manifest.timeline import Boundary
from laredo_archive.read.artifact_reader import RowFields
from laredo_archive.read.fold import Rows
from laredo_archive.read.objects import UNWATCHED, ReadProgress
from laredo_archive.reader import Archive
from laredo_model import line as lines_
from laredo_model.checksum import StateChecksum
from laredo_service.files import Digest, replacing

CSV = "csv"
FORMATS = (codec.JSONL, codec.PROTOBUF, codec.PARQUET, CSV, codec.JSONL_ZST, codec.PROTOBUF_ZST)
EXTENSIONS = {
    ".jsonl": codec.JSONL,
    ".pb": codec.PROTOBUF,
    ".parquet": codec.PARQUET,
    ".csv": CSV,
    ".jsonl.zst": codec.JSONL_ZST,
    ".pb.zst": codec.PROTOBUF_ZST,
}

_STRING = STRING.decode()
_ARRAY_TOKEN = re.compile(_STRING + r'|[^"]++|"', re.DOTALL)
_JSON_TOKEN = re.compile(_STRING + r'|[^",\[\]{}]++|[\[\]{},]', re.DOTALL)
_BRACES = str.maketrans("[]", "{}")
_BOXES = str.maketrans("[],", "{};")
_NEEDS_QUOTES = re.compile(r'[",\r\n]')


def format_of(target: Path) -> str | None:
    """The format that the file's name ends with."""
    return next((id_ for end, id_ in EXTENSIONS.items() if target.name.endswith(end)), None)


class Exported(NamedTuple):
    """A finished export."""

    #: The rows written.
    rows: int
    size_bytes: int
    sha256: str
    #: The rows' checksum, equal to the manifest's.
    state_checksum: str


def export(
    archive: Archive,
    boundary: Boundary,
    target: Path,
    format_id: str,
    *,
    replace: bool = False,
    progress: ReadProgress = UNWATCHED,
) -> Exported:
    """Write the table at ``boundary`` to ``target``, which appears whole or not at all.

    :raises ExportRefused: if ``target`` exists (without ``replace``) or can't be written, if the
        format needs columns that the archive doesn't name, or if the rows aren't the state in the
        manifest.
    :raises ArtifactDamaged: if a row doesn't have the archive's columns.
    :raises ArchiveError: as reading does.
    """
    if os.path.lexists(target):
        if not replace:
            raise ExportRefused(str(target), "it exists already; --force replaces it")
        if not stat.S_ISREG(target.lstat().st_mode):
            raise ExportRefused(str(target), "it isn't a regular file, so it isn't replaced")
    hidden = target.with_name(f".{target.name}-{secrets.token_hex(8)}")
    archive = archive.watched(progress)
    progress.expect(sum(map(archive.files.size_to_read, boundary.artifacts)))
    progress.step(f"{archive.manifest.table} at {boundary}")
    try:
        with hidden.open("xb") as sink, replacing(target, hidden, sink):
            return _write(archive, boundary, sink, format_id)
    except OSError as failure:
        raise ExportRefused(str(target), f"it can't be written: {failure}") from failure


def _write(archive: Archive, boundary: Boundary, sink: BinaryIO, format_id: str) -> Exported:
    hashing = _Hashing(sink)
    checksum = StateChecksum()
    write, end = _writer(archive, archive.shape(boundary), hashing, format_id)
    for keys, lines in archive.rows(boundary):
        checksum.add(lines)
        with _as_damage(archive, f"at {boundary}, from the key {keys[0][:80]!r} on", format_id):
            write((keys, lines))
    with _as_damage(archive, f"at {boundary}", format_id):
        end()
    expected = boundary.last
    if expected.state_checksum not in (None, checksum.hex()) or expected.rows not in (
        None,
        checksum.rows,
    ):
        raise ExportRefused(
            archive.uri,
            f"at {boundary} the archive has {checksum.rows} rows with checksum {checksum.hex()},"
            f" its manifest records {expected.rows} rows with checksum {expected.state_checksum};"
            " see laredo-archive verify, which finds the damaged objects",
        )
    return Exported(checksum.rows, hashing.digest.size, hashing.digest.hex(), checksum.hex())


@contextmanager
def _as_damage(archive: Archive, where: str, format_id: str) -> Iterator[None]:
    """:raises ArtifactDamaged: instead of what a damaged row raises."""
    try:
        yield
    except ValueError as wrong:
        raise ArtifactDamaged(
            archive.uri,
            f"{where}: a row can't be written as {format_id}: {wrong}. Does it fit the"
            " manifest's columns? See laredo-archive verify",
        ) from wrong


def _writer(
    archive: Archive, shape: RowFields, sink: "_Hashing", format_id: str
) -> tuple[Callable[[Rows], None], Callable[[], object]]:
    """Two functions: one writes rows, the other ends the file."""
    if format_id == CSV:
        return _csv_writer(shape, sink), lambda: None
    if codec.plain_format(format_id) != codec.JSONL and shape.columns is None:
        raise ExportRefused(archive.uri, f"the archive names no columns, which {format_id} needs")
    try:
        encoder = codec.snapshot_encoder(format_id, shape.columns or (), sink)
    except (codec.PyarrowMissing, codec.ZstandardMissing) as missing:
        raise ExportRefused(archive.uri, str(missing)) from missing
    return lambda rows: encoder.write(*rows), encoder.close


class _Hashing:
    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self.digest = Digest()

    def write(self, data: bytes, /) -> None:
        self._sink.write(data)
        self.digest.update(data)


def _csv_writer(shape: RowFields, sink: "_Hashing") -> Callable[[Rows], None]:
    types = {column.name: column.type for column in shape.columns or ()}
    names: list[str] = list(types)
    if names:
        sink.write(_csv_line(map(_quoted, names)))

    def write(rows: Rows) -> None:
        if not names:
            names.extend(lines_.names(rows[1][0]))
            sink.write(_csv_line(map(_quoted, names)))
        split = splitter(names)
        kinds = [types.get(name, "") for name in names]
        sink.write(b"".join(_csv_line(_values(split(line), kinds)) for line in rows[1]))

    return write


def _csv_line(values: Iterator[str]) -> bytes:
    return ",".join(values).encode() + b"\n"


def _values(fragments: Sequence[bytes], types: Sequence[str]) -> Iterator[str]:
    for fragment, type_name in zip(fragments, types, strict=True):
        yield csv_value(fragment.decode(), type_name)


def csv_value(fragment: str, type_name: str) -> str:
    """A JSON value as PostgreSQL's csv has it: NULL is empty, an empty string is quoted."""
    if fragment == "null":
        return ""
    if type_name in ("json", "jsonb"):
        return _quoted(fragment)
    if fragment[0] == '"':
        return _quoted(orjson.loads(fragment), always=fragment == '""')
    if fragment[0] == "[":
        return _quoted(array_text(fragment, type_name))
    return fragment


def _quoted(text: str, *, always: bool = False) -> str:
    if always or _NEEDS_QUOTES.search(text) or text == "\\.":
        return '"' + text.replace('"', '""') + '"'
    return text


def array_text(fragment: str, type_name: str) -> str:
    """A JSON array as PostgreSQL's array text: ``{1,NULL,"a b"}``.

    https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO
    """
    # Written piece by piece: a list of its elements would take many times the array's memory.
    text = io.StringIO()
    if type_name in ("_json", "_jsonb"):
        text.write("{")
        for number, element in enumerate(_split(fragment)):
            text.write("," if number else "")
            text.write("NULL" if element == "null" else _array_element(element))
        text.write("}")
        return text.getvalue()
    outside = _BOXES if type_name == "_box" else _BRACES
    for token in _ARRAY_TOKEN.finditer(fragment):
        if token[0][0] == '"':
            text.write(_array_element(orjson.loads(token[0])))
        else:
            text.write(token[0].translate(outside).replace("null", "NULL"))
    return text.getvalue()


def _split(fragment: str) -> Iterator[str]:
    """The values of a JSON array, verbatim. (More dimensions are nested values.)"""
    depth, start = 0, 1
    for token in _JSON_TOKEN.finditer(fragment, 1, len(fragment) - 1):
        if token[0] in "[{":
            depth += 1
        elif token[0] in "]}":
            depth -= 1
        elif token[0] == "," and depth == 0:
            yield fragment[start : token.start()]
            start = token.end()
    if start < len(fragment) - 1:
        yield fragment[start:-1]


def _array_element(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
