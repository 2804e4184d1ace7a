"""``laredo-archive ls | cat | diff | export``: lists and prints an archive's rows and changes."""

import sys
from codecs import getincrementaldecoder
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Protocol

import click
import orjson
from rich.console import Console

from laredo_archive.cli.options import (
    AsOf,
    archive_argument,
    as_of_option,
    epoch_option,
    exact_option,
    key_option,
    opened,
    s3_options,
    shown,
)
from laredo_archive.codec import jsonl
from laredo_archive.errors import ArchiveMissing, ArtifactDamaged, CatalogMissing
from laredo_archive.maintain import export as exporting
from laredo_archive.manifest import merged as merged_
from laredo_archive.manifest.catalog import CATALOG
from laredo_archive.manifest.model import Artifact, text_of_time
from laredo_archive.manifest.timeline import Epoch
from laredo_archive.read import location
from laredo_archive.read.location import FoundCatalog
from laredo_archive.reader import Archive
from laredo_archive.storage.access import S3Access
from laredo_model import position as positions
from laredo_model.position import Position
from laredo_service.command_line import Listing, cell
from laredo_service.figures import count, counted, size
from laredo_service.printable import printable, printable_lines


def described(archive: Archive) -> Iterator[dict[str, Any]]:
    """Each epoch as a JSON object, from the manifest alone.

    :raises ManifestDamaged: if an epoch has no base, or a gap.
    """
    for epoch in archive.epochs:
        last = epoch.artifacts[-1]
        yield {
            "epoch": epoch.number,
            "from_position": positions.text(epoch.base.to_position),
            "to_position": positions.text(last.to_position),
            "from_time": text_of_time(epoch.base.to_time or epoch.base.created_at),
            "to_time": text_of_time(last.to_time or last.created_at),
            "continues": epoch.base.continues,
            "artifacts": len(epoch.artifacts),
            "diffs": _committed(epoch),
            "base_bytes": epoch.base.size_bytes,
            "diff_bytes": sum(diff.size_bytes for diff in epoch.diffs),
            "rows": last.row_count if last.rows is None else last.rows,
        }


def _committed(epoch: Epoch) -> int:
    """Number of diffs that were committed, before any were merged, as far as known."""
    return sum(diff.parts.count if diff.parts else 1 for diff in epoch.diffs)


def _epochs(archive: Archive) -> Listing:
    """Each epoch as a row; raises like :func:`described`."""
    listing = Listing(
        *("epoch", "ends at", "until (UTC)", "diffs", "base", "in diffs", "rows"),
        figures=("epoch", "diffs", "base", "in diffs", "rows"),
    )
    for epoch in described(archive):
        listing.add(
            str(epoch["epoch"]),
            epoch["to_position"],
            epoch["to_time"][:16].replace("T", " "),
            count(epoch["diffs"]),
            size(epoch["base_bytes"]),
            size(epoch["diff_bytes"]),
            count(epoch["rows"]),
        )
    return listing


class LineOutput(Protocol):
    """Takes whole lines, any number at once."""

    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> object: ...


def data_output() -> LineOutput:
    """Stdout for rows: byte for byte, but control characters are escaped on a terminal.

    JSON leaves C1 controls and bidirectional marks as they are.
    """
    out = sys.stdout.buffer
    return _Terminal(out) if sys.stdout.isatty() else out


class _Terminal:
    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        # A character may be split over two pieces.
        self._decoder = getincrementaldecoder("utf-8")("backslashreplace")

    def write(self, data: bytes, /) -> None:
        shown = printable_lines(self._decoder.decode(data))
        self._out.write(shown.encode(sys.stdout.encoding or "utf-8", errors="backslashreplace"))

    def flush(self) -> None:
        self._out.flush()


def list_catalog(found: FoundCatalog, *, as_json: bool) -> None:
    """List a catalog's archives: a table on a terminal, else one JSON object a line."""
    described = [
        _described_catalog(found, name, prefix) for name, prefix in found.catalog.names().items()
    ]
    if as_json or not sys.stdout.isatty():
        out = data_output()
        for archive in described:
            out.write(orjson.dumps(archive) + b"\n")
        out.flush()
        return
    console = Console()
    title = f"{found.base}: {counted(len(described), 'table')}"
    console.print(printable(title), highlight=False, markup=False, soft_wrap=True)
    # Archives that no catalog names, such as that of a writer's only table, have no group.
    has_groups = any(archive["boundaries"] for archive in described)
    listing = Listing("table", *(("known with its group at", "time (UTC)") if has_groups else ()))
    for archive in described:
        newest = archive["boundaries"][-1] if archive["boundaries"] else {}
        time = newest.get("time", "")[:19].replace("T", " ")
        name = f"{archive['name']} in {archive['uri'].removeprefix(found.base)}"
        listing.add(name, *([newest.get("position", ""), time] if has_groups else ()))
    console.print(listing, soft_wrap=True)


def _described_catalog(found: FoundCatalog, name: str, prefix: str) -> dict[str, Any]:
    entry = found.catalog.archives[prefix]
    return {
        "name": name,
        "table": entry.table,
        "uri": found.uri_of(prefix),
        "columns": [column.name for column in entry.columns],
        "key_fields": list(entry.key_fields),
        "group": entry.group,
        "boundaries": [each.to_json() for each in found.catalog.boundaries(prefix)],
    }


Moment = Position | datetime


@click.command("ls")
@archive_argument
@click.option("--json", "as_json", is_flag=True, help="JSON lines, also on a terminal.")
@click.option("--all", "in_steps", is_flag=True, help="Show merged diffs' parts instead of them.")
@click.option("--summary", "by_epoch", is_flag=True, help="A line for each epoch.")
@s3_options()
def list_artifacts(
    *, uri: str, as_json: bool, in_steps: bool, by_epoch: bool, access: S3Access
) -> None:
    """List the artifacts: a table on a terminal, else one JSON object a line.

    A merged diff shows the number of its parts; --all lists the parts, as far as they are kept. For
    a destination, list its archives: those in its catalog.json, else those directly below it.
    """
    if uri.endswith(CATALOG):
        list_catalog(location.find_catalog(uri, access), as_json=as_json)
        return
    try:
        archive = opened(uri, access)
    except ArchiveMissing as missing:
        list_catalog(_found_below(uri, access, missing), as_json=as_json)
        return
    if in_steps:
        archive.unfold(merged_.everywhere)
    if as_json or not sys.stdout.isatty():
        out = data_output()
        lines = described(archive) if by_epoch else map(_described, archive.manifest.artifacts)
        for line in lines:
            out.write(orjson.dumps(line) + b"\n")
        out.flush()
        return
    console = Console()
    console.print(_heading(archive), highlight=False, markup=False, soft_wrap=True)
    console.print(_epochs(archive) if by_epoch else _artifacts(archive), soft_wrap=True)


def _found_below(uri: str, access: S3Access, missing: ArchiveMissing) -> FoundCatalog:
    """The catalog of a destination, or one made of the archives there.

    :raises ArchiveMissing: ``missing``, if there is neither.
    """
    try:
        return location.find_catalog(uri, access)
    except CatalogMissing:
        found = location.catalog_of_archives(uri, access)
    if not found.catalog.archives:
        raise missing
    return found


def _described(artifact: Artifact) -> dict[str, Any]:
    start = artifact.from_position
    return {
        "epoch": artifact.epoch,
        "kind": artifact.kind.value,
        "from_position": None if start is None else positions.text(start),
        "to_position": positions.text(artifact.to_position),
        "to_time": None if artifact.to_time is None else text_of_time(artifact.to_time),
        "created_at": text_of_time(artifact.created_at),
        "records": _records(artifact),
        "truncate": artifact.truncate,
        "continues": artifact.continues,
        "reason": artifact.reason,
        "rows": artifact.rows,
        "state_checksum": artifact.state_checksum,
        "history": None if artifact.history is None else str(artifact.history),
        "formats": {id_: entry.size_bytes for id_, entry in artifact.formats.items()},
        "keys": artifact.keys,
        "merged_from": None if artifact.parts is None else artifact.parts.count,
    }


def _records(artifact: Artifact) -> int | None:
    return artifact.row_count if artifact.is_snapshot else artifact.change_count


def _heading(archive: Archive) -> str:
    manifest = archive.manifest
    head = "nothing in it yet"
    if manifest.head_position is not None:
        head = f"head {positions.text(manifest.head_position)} in epoch {manifest.epoch}"
    seen = ""
    if manifest.seen_position is not None and manifest.seen_at is not None:
        seen = f", seen {positions.text(manifest.seen_position)} at {_time(manifest.seen_at)}"
    history = "" if manifest.history is None else f"\nhistory {manifest.history}"
    writer = "" if manifest.writer_id is None else f", writer {manifest.writer_id}"
    term = f" (term {manifest.writer_term})" if writer else ""
    if manifest.by_original:
        writer = ", written by the original program: read-only here"
    table, uri = printable(manifest.table), printable(archive.uri)
    return f"{table}: {head}{seen}{history}{printable(writer)}{term}\n{uri}"


def _artifacts(archive: Archive) -> Listing:
    listing = Listing(
        *("artifact", "ends at", "time (UTC)", "changes", "rows", "size"),
        figures=("changes", "rows", "size"),
    )
    epoch = None
    for artifact in archive.manifest.artifacts:
        if artifact.epoch != epoch:
            epoch = artifact.epoch
            reason = f": {artifact.reason}" if artifact.reason else ""
            formats = ", ".join(artifact.formats)
            listing.add(cell(f"epoch {epoch} ({formats}){reason}", "bold"))
        listing.add(
            _kind(artifact),
            positions.text(artifact.to_position) if artifact.knows_its_end else "unknown",
            _time(artifact.to_time or artifact.created_at),
            "" if artifact.is_snapshot else count(artifact.change_count),
            count(artifact.row_count if artifact.rows is None else artifact.rows),
            size(artifact.size_bytes),
        )
    return listing


def _kind(artifact: Artifact) -> str:
    merged = f" of {artifact.parts.count:,}" if artifact.parts else ""
    kind = "base" if artifact.is_snapshot else "diff"
    return f"{kind}{merged}" + (" (truncates)" if artifact.truncate else "")


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"


@click.command("cat")
@archive_argument
@as_of_option
@exact_option
@epoch_option
@key_option
@s3_options()
def print_rows(
    *,
    uri: str,
    as_of: Moment | None,
    exact: bool,
    epoch: int | None,
    key_fields: tuple[str, ...],
    access: S3Access,
) -> None:
    """Print the table's rows, one JSON object a line, in key order."""
    archive = opened(uri, access, key_fields)
    boundary = archive.boundary(as_of, exact=exact, epoch=epoch)
    out = data_output()
    for _, lines in archive.rows(boundary):
        out.write(b"\n".join([*lines, b""]))
    out.flush()


@click.command("diff")
@archive_argument
@click.option("--from", "start", type=AsOf(), required=True, help="A position or a time.")
@click.option("--to", "end", type=AsOf(), help="A position or a time. Default: the head.")
@exact_option
@key_option
@s3_options()
def print_changes(
    *,
    uri: str,
    start: Moment,
    end: Moment | None,
    exact: bool,
    key_fields: tuple[str, ...],
    access: S3Access,
) -> None:
    """Print the net change of each key, one JSON object a line, in key order.

    If the table was truncated in between, the TRUNCATE comes first, and all others are INSERT.
    """
    archive = opened(uri, access, key_fields)
    first = archive.boundary(start, exact=exact)
    last = archive.boundary(end, exact=exact)
    truncated, changes = archive.changes(first, last)
    out = data_output()
    encoder = jsonl.JsonlDiffEncoder(out)
    if truncated:
        encoder.truncate()
    try:
        encoder.write(changes)
    except UnicodeDecodeError as wrong:
        raise ArtifactDamaged(
            archive.uri, f"between {first} and {last}: a key isn't UTF-8 ({wrong})"
        ) from wrong
    out.flush()


@click.command("export")
@archive_argument
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--format",
    "format_id",
    type=click.Choice(exporting.FORMATS),
    help="Default: by the file's extension (.jsonl, .pb, .parquet, .csv, .jsonl.zst, .pb.zst).",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@as_of_option
@exact_option
@epoch_option
@key_option
@s3_options()
def export_table(
    *,
    uri: str,
    target: Path,
    format_id: str | None,
    force: bool,
    as_of: Moment | None,
    exact: bool,
    epoch: int | None,
    key_fields: tuple[str, ...],
    access: S3Access,
) -> None:
    """Write the table into one file, whole or not at all, and compare its checksum."""
    chosen = format_id or exporting.format_of(target)
    if chosen is None:
        known = ", ".join(exporting.EXTENSIONS)
        raise click.UsageError(f"{target} doesn't end in {known}; give --format")
    archive = opened(uri, access, key_fields)
    boundary = archive.boundary(as_of, exact=exact, epoch=epoch)
    with shown(archive.uri) as progress:
        written = exporting.export(
            archive, boundary, target, chosen, replace=force, progress=progress
        )
    text = (
        f"{target}: {written.rows} rows of {archive.manifest.table} at {boundary},"
        f" {size(written.size_bytes)}, sha256 {written.sha256},"
        f" state checksum {written.state_checksum}"
    )
    click.echo(printable(text))
