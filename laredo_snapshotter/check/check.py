"""``laredo-snapshotter check``: can this configuration work? It leaves everything as it was."""

import asyncio
import os
from collections.abc import Awaitable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from laredo_archive.aws.profile import AwsError
from laredo_archive.errors import ArchiveError, DestinationDenied
from laredo_archive.manifest import object_keys, parser
from laredo_archive.manifest.model import Manifest
from laredo_archive.manifest.rules import head_of
from laredo_archive.storage.destination import Destination
from laredo_archive.write import claim
from laredo_fanout.client.errors import ClientError
from laredo_fanout.client.events import Handshake
from laredo_fanout.client.stream.stream import SyncOptions, open_stream
from laredo_model import position
from laredo_model.column import key_columns
from laredo_snapshotter import config_outputs
from laredo_snapshotter.check import certificates
from laredo_snapshotter.check.aws import SharedAwsChecks, TitledCheck, in_thread, title_of
from laredo_snapshotter.check.finding import FindingsSection, WriterFinding, show
from laredo_snapshotter.commit.destinations import Stores
from laredo_snapshotter.config import HttpBlock, TableConfig
from laredo_snapshotter.config_outputs import DestinationConfig
from laredo_snapshotter.diff.trigger_history import summary

SERVER_PATIENCE_S = 10.0
TRIGGERS = "snapshot triggers"


async def check_tables(
    tables: Sequence[TableConfig], http: HttpBlock, before: Sequence[FindingsSection] = ()
) -> int:
    """Check every table's server, destinations and sinks, and print what was found, behind what
    was found ``before``.

    The result is an exit code: 0 if all is well, else 1.
    """
    dangers = [WriterFinding("http", True, f"warning: {danger}") for danger in http.dangers]
    with Console(stderr=True).status("checking servers, destinations and sinks"):
        sections = [*before, *await _sections(tables, Stores())]
    if dangers:
        sections.append(FindingsSection("http", dangers))
    if found := list(certificates.findings(tables)):
        sections.append(FindingsSection("certificates", found))
    show(sections, Console())
    return 0 if all(found.good for section in sections for found in section.findings) else 1


async def _sections(tables: Sequence[TableConfig], stores: Stores) -> list[FindingsSection]:
    shared = SharedAwsChecks(tables, stores)
    checks = [
        *shared.checks(),
        *(
            TitledCheck(table.name, table_check)
            for table in tables
            for table_check in _of_table(table)
        ),
    ]
    found = list(zip(checks, await asyncio.gather(*(each.work for each in checks)), strict=True))
    out_of_reach = {
        each.title for each, findings in found if not all(finding.good for finding in findings)
    }
    archives = [
        TitledCheck(table.name, in_thread(_archive, table, destination, stores))
        for table in tables
        for destination in table.destinations
        if title_of(destination) not in out_of_reach
    ]
    found += zip(archives, await asyncio.gather(*(each.work for each in archives)), strict=True)
    by_title: dict[str, list[WriterFinding]] = {}
    for each, findings in found:
        by_title.setdefault(each.title, []).extend(findings)
    return [FindingsSection(title, findings) for title, findings in by_title.items()]


def _of_table(table: TableConfig) -> Iterator[Awaitable[list[WriterFinding]]]:
    yield _server(table)
    for destination in table.destinations:
        if isinstance(destination, config_outputs.LocalDestinationBlock):
            yield in_thread(_directory, "destination", destination.directory)
    if table.spill_directory is not None:
        yield in_thread(_directory, "local_snapshot_path", table.spill_directory)


async def _server(table: TableConfig) -> list[WriterFinding]:
    what = f"server {table.endpoint.server}"
    try:
        async with asyncio.timeout(SERVER_PATIENCE_S):
            handshake = await _handshake(table)
    except TimeoutError:
        return [WriterFinding(what, False, f"no answer within {SERVER_PATIENCE_S:g} s")]
    except ClientError as refused:
        return [WriterFinding(what, False, str(refused))]
    if handshake is None or handshake.history is None:
        return [WriterFinding(what, False, "not a laredo-fanout that sends positions")]
    key = [column.name for column in key_columns(handshake.columns)]
    if table.key_fields is not None and list(table.key_fields) != key:
        detail = f"key_fields = {list(table.key_fields)}, but the table's key is {key}"
        return [WriterFinding(what, False, detail)]
    return [WriterFinding(what, True, f"{len(handshake.columns)} columns, key {', '.join(key)}")]


async def _handshake(table: TableConfig) -> Handshake | None:
    options = SyncOptions(table.name, f"{table.client_id}:check")
    async with open_stream(table.endpoint, options) as events:
        async for event in events:
            return event if isinstance(event, Handshake) else None
    return None


def _archive(
    table: TableConfig, block: DestinationConfig, stores: Stores
) -> Iterator[WriterFinding]:
    try:
        destination = stores.destination(block, stores.clients(table.profiles))
        yield from _manifest(table, destination, first=block is table.destinations[0])
    except AwsError as unusable:
        yield WriterFinding(f"archive {block.uri}{table.key_prefix}", False, str(unusable))


def _manifest(
    table: TableConfig, destination: Destination, *, first: bool
) -> Iterator[WriterFinding]:
    key = object_keys.manifest_key(table.key_prefix)
    what = f"archive {destination.uri_of(key)}"
    try:
        found = destination.get(key)
        if found is None:
            yield _of_new(what, table, destination)
            if first:
                yield WriterFinding(TRIGGERS, True, summary(table.triggers, None))
            return
        manifest = parser.parse(found.data, destination.uri_of(key))
    except ArchiveError as wrong:
        yield WriterFinding(what, False, str(wrong))
        return
    if manifest.table != table.name:
        yield WriterFinding(what, False, f"it is the archive of {manifest.table}")
        return
    yield WriterFinding(what, True, _described(manifest))
    if first:
        yield WriterFinding(TRIGGERS, True, summary(table.triggers, manifest))


def _of_new(what: str, table: TableConfig, destination: Destination) -> WriterFinding:
    claim.refuse_other_prefix(destination, table.name, table.key_prefix)
    try:
        found = claim.objects_at(destination, table.key_prefix)
    except DestinationDenied:
        found = None  # a writer needn't be allowed to list
    beside = f"; there are {found}" if found else ""
    return WriterFinding(what, True, f"none yet; the first base will begin it{beside}")


def _described(manifest: Manifest) -> str:
    age = datetime.now(UTC) - manifest.updated_at
    written = f"written {age.total_seconds():.0f} s ago by writer {manifest.writer_id}"
    head = head_of(manifest)
    if head is None:
        return f"claimed, no base yet; {written}"
    at = position.text(head.position)
    return f"epoch {head.epoch} up to {at}, {head.rows} rows; {written}"


def _directory(what: str, path: Path) -> Iterator[WriterFinding]:
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    good = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    if not good:
        detail = f"{there} is no directory that this process may write to"
    elif there != path:
        detail = f"will be made below {there}"
    else:
        detail = "can be written to"
    yield WriterFinding(f"{what} {path}", good, detail)
