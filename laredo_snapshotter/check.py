"""``laredo-snapshotter check``: tests whether this configuration can work; changes nothing.

Each step tries one permission or property that a writer needs, as the writer uses it. In a bucket
it writes a small hidden object, and removes it again.
"""

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, ParamSpec

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from laredo_archive.aws.clients import AwsClients
from laredo_archive.aws.explain import Cause, explain, failures
from laredo_archive.aws.profile import AwsError
from laredo_archive.errors import (
    ArchiveError,
    DestinationDenied,
    DestinationError,
    DestinationUnavailable,
)
from laredo_archive.manifest import object_keys, parser
from laredo_archive.manifest.model import Manifest
from laredo_archive.manifest.updates import head_of
from laredo_archive.storage.destination import Destination, StoredObject
from laredo_archive.storage.s3.bucket import S3Location
from laredo_archive.storage.s3.destination import S3Destination
from laredo_archive.write import claim
from laredo_fanout.client.errors import ClientError, StreamError
from laredo_fanout.client.events import Handshake
from laredo_fanout.client.stream.endpoint import Endpoint
from laredo_fanout.client.stream.stream import SyncOptions, open_stream, served_tables
from laredo_model import position
from laredo_model.column import key_columns
from laredo_service.certificates import CertificateUnreadable, remaining
from laredo_service.printable import printable
from laredo_snapshotter import config
from laredo_snapshotter.config import HttpBlock, SnapshotterBlock, TableConfig
from laredo_snapshotter.config_outputs import (
    DestinationConfig,
    LocalDestinationBlock,
    S3DestinationBlock,
    SinkConfig,
    SqsSink,
)
from laredo_snapshotter.destinations import Stores
from laredo_snapshotter.errors import ConfigRefused, SinkError
from laredo_snapshotter.events.sinks import build, is_at_aws
from laredo_snapshotter.table.status import configured
from laredo_snapshotter.triggers import summary

# Findings of ``laredo-snapshotter check``, and their display.


class WriterFinding(NamedTuple):
    """The result of one check."""

    what: str
    """Subject of the check."""
    good: bool
    detail: str
    """Result of the check."""


class FindingsSection(NamedTuple):
    """Findings about one table, or about what tables share."""

    title: str
    findings: Sequence[WriterFinding]


def show(sections: Sequence[FindingsSection], console: Console) -> None:
    """A table for people on a terminal, else a line for each finding."""
    for section in sections:
        if console.is_terminal:
            console.print(f"[bold]{_shown(section.title)}[/]", highlight=False)
            console.print(Padding(_table(section), (0, 0, 1, 2)))
        else:
            for finding in section.findings:
                mark = "ok" if finding.good else "wrong"
                print(printable(f"{section.title}: {mark}: {finding.what}: {finding.detail}"))
    found = [finding for section in sections for finding in section.findings]
    wrong = sum(not finding.good for finding in found)
    console.print(
        f"{len(found)} checked, " + (f"[red]{wrong} wrong[/]" if wrong else "[green]all well[/]"),
        highlight=False,
    )


def _shown(text: str) -> str:
    """Escape markup and control characters: names come from outside."""
    return escape(printable(text))


def _table(section: FindingsSection) -> Table:
    shown = Table(box=None, pad_edge=False, show_header=False)
    shown.add_column(no_wrap=True)
    shown.add_column(overflow="fold", max_width=60)
    shown.add_column(overflow="fold", ratio=1)
    for finding in section.findings:
        mark = "[green]ok[/]" if finding.good else "[red]wrong[/]"
        shown.add_row(mark, _shown(finding.what), _shown(finding.detail))
    return shown


PROBE = ".laredo-check-"
AGES = timedelta(days=36500)
"""Older than any upload, so the listing deletes none."""

_ONE_STEP_ONLY = frozenset({Cause.DENIED, Cause.KMS, Cause.NOT_IMPLEMENTED})
"""Refusals that don't concern the next step; after any other it would fail as well."""

CheckStep = tuple[str, Callable[[], str]]
P = ParamSpec("P")


class TitledCheck(NamedTuple):
    """A check, and the title under which its findings are shown."""

    title: str
    work: Awaitable[list[WriterFinding]]


async def in_thread(
    check: Callable[P, Iterable[WriterFinding]], *about: P.args, **more: P.kwargs
) -> list[WriterFinding]:
    """Findings of ``check``, which runs in a thread."""
    return await asyncio.to_thread(lambda: list(check(*about, **more)))


def title_of(destination: DestinationConfig) -> str:
    """Title above the findings about a destination."""
    return f"destination {destination.location}"


def _shared_checks(tables: Sequence[TableConfig], stores: Stores) -> Iterator[TitledCheck]:
    """A check of every profile, bucket and sink in use.

    What several tables share is checked once.
    """
    users = [(table, stores.clients(table.profiles)) for table in tables]
    for clients, name in dict.fromkeys(_profiles(users)):
        yield TitledCheck("credentials", in_thread(check_profile, clients, name))
    buckets = {
        (clients, destination.s3_location): title_of(destination)
        for table, clients in users
        for destination in table.destinations
        if isinstance(destination, S3DestinationBlock)
    }
    for (clients, s3_location), title in buckets.items():
        yield TitledCheck(title, in_thread(check_bucket, clients, s3_location))
    sinks = dict.fromkeys((clients, sink) for table, clients in users for sink in table.sinks)
    for clients, sink in sinks:
        yield TitledCheck("sinks", in_thread(check_sink, clients, sink))


def _profiles(
    users: Sequence[tuple[TableConfig, AwsClients]],
) -> Iterator[tuple[AwsClients, str | None]]:
    """Profiles in use, except those that only other stores than AWS's know."""
    for table, clients in users:
        for destination in (*table.destinations, *table.sinks):
            if isinstance(destination, LocalDestinationBlock):
                continue
            named = table.profiles.get(destination.credentials or "")
            has_sts = named is not None and (named.type == "assume_role" or named.endpoint)
            if has_sts or _is_at_aws(destination):
                yield clients, destination.credentials


def _is_at_aws(destination: S3DestinationBlock | SinkConfig) -> bool:
    if isinstance(destination, SqsSink):
        return is_at_aws(destination)
    return destination.endpoint is None


def check_profile(clients: AwsClients, credentials: str | None) -> Iterator[WriterFinding]:
    """Identity of a profile."""
    name = credentials or "ambient"
    try:
        identity = clients.identity(credentials)
    except AwsError as unusable:
        yield WriterFinding(name, False, str(unusable))
    except failures() as failure:
        explained = explain(
            failure,
            service="sts",
            operation="GetCallerIdentity",
            credentials=credentials,
            resource=f"profile {name}",
        )
        yield WriterFinding(name, False, explained.message)
    else:
        yield WriterFinding(name, True, f"{identity.arn} (account {identity.account})")


def check_bucket(clients: AwsClients, location: S3Location) -> Iterator[WriterFinding]:
    """Try each request that a writer makes of a destination, one after the other."""
    try:
        destination = S3Destination(location, clients)
    except AwsError as unusable:
        yield WriterFinding("settings", False, str(unusable))
        return
    for what, step in _steps(destination, location):
        try:
            detail = step()
        except ArchiveError as failure:
            yield WriterFinding(what, False, str(failure))
            if not _is_of_this_step(failure):
                return
        else:
            yield WriterFinding(what, True, detail)


def check_sink(clients: AwsClients, sink: SinkConfig) -> Iterator[WriterFinding]:
    """Check that the sink exists and answers; no notice is sent."""
    what = f"{sink.type} {sink.name}"
    try:
        detail = build(sink, clients).check()
    except (SinkError, AwsError) as failure:
        yield WriterFinding(what, False, str(failure))
    else:
        yield WriterFinding(what, True, detail)


def _steps(destination: S3Destination, location: S3Location) -> list[CheckStep]:
    return [
        ("list", lambda: _list(destination)),
        ("write, read, delete", lambda: _write(destination, location)),
        ("conditional writes, multipart", lambda: _swap(destination)),
        ("unfinished uploads", lambda: _list_unfinished(destination)),
    ]


def _is_of_this_step(failure: ArchiveError) -> bool:
    kind = getattr(failure.__cause__, "kind", None)
    return kind in _ONE_STEP_ONLY or not isinstance(failure, DestinationError)


def _list(destination: S3Destination) -> str:
    first = next(destination.list(""), None)
    return "empty" if first is None else "has objects"


def _write(destination: S3Destination, location: S3Location) -> str:
    key = f"{PROBE}{secrets.token_hex(8)}"
    data = b"laredo-snapshotter check: may be deleted\n"
    try:
        found = _written(destination, key, data)
    except DestinationError:
        with suppress(DestinationError):  # the first failure is the one to show
            destination.delete(key)
        raise
    destination.delete(key)
    if found is None or found.data != data:
        raise DestinationUnavailable(
            destination.uri_of(key),
            "a new object reads back differently; does this store read its own writes?",
        )
    return ", ".join(_kept(location))


def _written(destination: S3Destination, key: str, data: bytes) -> StoredObject | None:
    upload = destination.upload(key)
    try:
        upload.write(data)
        upload.finish()
    finally:
        upload.abort()
    return destination.get(key)


def _kept(location: S3Location) -> Iterator[str]:
    if location.server_side_encryption is None:
        yield "encrypted as the bucket is set up"
    else:
        key = f" with key {location.kms_key_id}" if location.kms_key_id else ""
        yield f"encrypted by {location.server_side_encryption}{key}"
    if location.storage_class is not None:
        yield f"class {location.storage_class}"
    if location.tags:
        yield f"tags {', '.join(f'{key}={value}' for key, value in location.tags.items())}"


def _swap(destination: S3Destination) -> str:
    destination.probe()
    return "If-None-Match and If-Match are honoured"


def _list_unfinished(destination: S3Destination) -> str:
    destination.collect_unfinished("", AGES, lambda _: False)
    return "can be listed"


# Findings of ``check`` about the certificates that a writer's configuration names.


def findings(tables: Sequence[TableConfig]) -> Iterator[WriterFinding]:
    """Finding for each certificate."""
    now = datetime.now(UTC)
    for certificate in configured(tables):
        try:
            expiry = certificate.expiry()
        except CertificateUnreadable as error:
            yield WriterFinding(certificate.name, False, str(error))
            continue
        detail = f"{certificate.path} {remaining(expiry, now)}"
        yield WriterFinding(certificate.name, expiry > now, detail)


SERVER_PATIENCE_S = 10.0
TRIGGERS = "snapshot triggers"


async def check_tables(
    tables: Sequence[TableConfig], http: HttpBlock, before: Sequence[FindingsSection]
) -> int:
    """Check every table's server, destinations and sinks, and print the findings.

    The findings ``before`` are printed first. The exit code is 0 if all is well, else 1.
    """
    dangers = [WriterFinding("http", True, f"warning: {danger}") for danger in http.dangers]
    with Console(stderr=True).status("checking servers, destinations and sinks"):
        sections = [*before, *await _sections(tables, Stores())]
    if dangers:
        sections.append(FindingsSection("http", dangers))
    if found := list(findings(tables)):
        sections.append(FindingsSection("certificates", found))
    show(sections, Console())
    return 0 if all(found.good for section in sections for found in section.findings) else 1


async def _sections(tables: Sequence[TableConfig], stores: Stores) -> list[FindingsSection]:
    checks = [
        *_shared_checks(tables, stores),
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
    for endpoint in table.endpoint.each():
        yield _server(table, endpoint)
    for destination in table.destinations:
        if isinstance(destination, LocalDestinationBlock):
            yield in_thread(_directory, "destination", destination.directory)
    if table.spill_directory is not None:
        yield in_thread(_directory, "local_snapshot_path", table.spill_directory)


async def _server(table: TableConfig, endpoint: Endpoint) -> list[WriterFinding]:
    what = f"server {endpoint.server}"
    try:
        async with asyncio.timeout(SERVER_PATIENCE_S):
            handshake = await _handshake(table, endpoint)
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


async def _handshake(table: TableConfig, endpoint: Endpoint) -> Handshake | None:
    options = SyncOptions(table.name, f"{table.client_id}:check")
    async with open_stream(endpoint, options) as events:
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
        yield WriterFinding(what, False, f"the archive there is that of {manifest.table}")
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
    beside = f"; the directory contains {found}" if found else ""
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


async def check_block(block: SnapshotterBlock) -> int:
    """Check every table, those of patterns too, and print the findings; return the exit code."""
    known, findings = {}, []
    for each, path in config.patterns(block).items():
        named = f"{path}: {each.pattern.schema}.{each.pattern.table}"
        try:
            known[each] = list(each.pattern.of(await served_tables(each.endpoint)))
        except StreamError as error:
            findings.append(
                WriterFinding(named, False, f"the server's tables aren't known: {error}")
            )
        else:
            findings.append(WriterFinding(named, True, f"matches {len(known[each])} tables"))
    try:
        tables = config.matching_tables(block, known)
    except ConfigRefused as refused:
        findings.append(WriterFinding("patterns", False, str(refused)))
        tables = config.matching_tables(block, {})
    sections = [FindingsSection("patterns", findings)] if findings else []
    return await check_tables(tables, block.http, sections)
