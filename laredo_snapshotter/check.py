"""``laredo-snapshotter check``: can this configuration work? Looks, and writes nothing."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from laredo_archive import manifest_parser, naming
from laredo_archive.errors import ArchiveError
from laredo_archive.head import head_of
from laredo_archive.local import LocalDestination
from laredo_fanout.client.errors import ClientError
from laredo_fanout.client.events import Handshake
from laredo_fanout.client.stream import SyncOptions, open_stream
from laredo_model import position as position_
from laredo_model.column import key_columns
from laredo_snapshotter import config_places
from laredo_snapshotter.config import TableConfig

SERVER_PATIENCE_S = 10.0


class Finding(NamedTuple):
    """One thing that was looked at."""

    table: str
    what: str
    good: bool
    said: str


async def check_tables(tables: list[TableConfig]) -> int:
    """Look at every table's server and destinations, and print what was found.

    The result is an exit code: 0 if all is well, else 1.
    """
    findings: list[Finding] = []
    for table in tables:
        findings.append(await _server(table))
        for place in table.destinations:
            if isinstance(place, config_places.LocalDestination):
                findings += await asyncio.to_thread(_destination, table, place.directory)
        if table.spill_directory is not None:
            findings.append(_directory(table, "local_snapshot_path", table.spill_directory))
    _show(findings)
    return 0 if all(finding.good for finding in findings) else 1


async def _server(table: TableConfig) -> Finding:
    what = f"server {table.endpoint.server}"
    try:
        async with asyncio.timeout(SERVER_PATIENCE_S):
            handshake = await _handshake(table)
    except TimeoutError:
        return Finding(table.name, what, False, f"no answer within {SERVER_PATIENCE_S:g} s")
    except ClientError as refused:
        return Finding(table.name, what, False, str(refused))
    if handshake is None or handshake.history is None:
        return Finding(table.name, what, False, "not a laredo-fanout that tells positions")
    key = [column.name for column in key_columns(handshake.columns)]
    if table.key_fields is not None and list(table.key_fields) != key:
        said = f"key_fields = {list(table.key_fields)}, but the table's key is {key}"
        return Finding(table.name, what, False, said)
    return Finding(
        table.name, what, True, f"{len(handshake.columns)} columns, key {', '.join(key)}"
    )


async def _handshake(table: TableConfig) -> Handshake | None:
    options = SyncOptions(table.name, f"{table.client_id}:check")
    async with open_stream(table.endpoint, options) as events:
        async for event in events:
            return event if isinstance(event, Handshake) else None
    return None


def _destination(table: TableConfig, path: Path) -> list[Finding]:
    return [*_look(table, path)]


def _look(table: TableConfig, path: Path) -> Iterator[Finding]:
    yield _directory(table, "destination", path)
    destination = LocalDestination(path)
    key = naming.manifest_key(table.key_prefix)
    what = f"archive {destination.uri_of(key)}"
    try:
        found = destination.get(key)
        if found is None:
            yield Finding(table.name, what, True, "none yet; the first base will begin it")
            return
        manifest = manifest_parser.parse(found.data, destination.uri_of(key))
    except ArchiveError as wrong:
        yield Finding(table.name, what, False, str(wrong))
        return
    head = head_of(manifest)
    if manifest.table != table.name:
        yield Finding(table.name, what, False, f"it is the archive of {manifest.table}")
    elif head is None:
        yield Finding(table.name, what, True, "claimed, no base yet")
    else:
        at = position_.text(head.position)
        yield Finding(table.name, what, True, f"epoch {head.epoch} up to {at}, {head.rows} rows")


def _directory(table: TableConfig, what: str, path: Path) -> Finding:
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    good = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    if not good:
        said = f"{there} is no directory that this process may write to"
    elif there != path:
        said = f"will be made below {there}"
    else:
        said = "can be written to"
    return Finding(table.name, f"{what} {path}", good, said)


def _show(findings: list[Finding]) -> None:
    console = Console()
    if not console.is_terminal:
        for finding in findings:
            mark = "ok" if finding.good else "wrong"
            print(f"{finding.table}: {mark}: {finding.what}: {finding.said}")
        return
    shown = Table("table", "what", "", "found", box=None, pad_edge=False)
    for finding in findings:
        mark = "[green]ok[/]" if finding.good else "[red]wrong[/]"
        shown.add_row(finding.table, finding.what, mark, finding.said)
    console.print(shown)
