"""The AWS checks of ``laredo-snapshotter check``: identity, buckets, sinks.

Each step is one permission or property that a writer needs, tried the way the
writer uses it. What is written to a bucket is a small hidden object, removed again.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple, ParamSpec

from laredo_archive.aws.clients import AwsClients
from laredo_archive.aws.explain import Cause, explain, failures
from laredo_archive.aws.profile import AwsError
from laredo_archive.errors import ArchiveError, DestinationError, DestinationUnavailable
from laredo_archive.storage.destination import StoredObject
from laredo_archive.storage.s3.bucket import S3Location
from laredo_archive.storage.s3.destination import S3Destination
from laredo_snapshotter.check.finding import WriterFinding
from laredo_snapshotter.commit.destinations import Stores
from laredo_snapshotter.config import TableConfig
from laredo_snapshotter.config_outputs import (
    DestinationConfig,
    LocalDestinationBlock,
    S3DestinationBlock,
    SinkConfig,
    SqsSink,
)
from laredo_snapshotter.errors import SinkError
from laredo_snapshotter.events import sqs
from laredo_snapshotter.events.build import build

PROBE = ".laredo-check-"
AGES = timedelta(days=36500)
"""Nothing is so old: what is listed with it isn't touched."""

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
    """Below which findings about a destination are shown."""
    return f"destination {destination.location}"


class SharedAwsChecks:
    """The checks of what several tables share; each is made once."""

    def __init__(self, tables: Sequence[TableConfig], stores: Stores) -> None:
        self._users = [(table, stores.clients(table.profiles)) for table in tables]

    def checks(self) -> Iterator[TitledCheck]:
        """Of every profile, bucket and sink that is used."""
        for clients, name in dict.fromkeys(self._profiles()):
            yield TitledCheck("credentials", in_thread(check_profile, clients, name))
        buckets = {
            (clients, destination.s3_location): title_of(destination)
            for table, clients in self._users
            for destination in table.destinations
            if isinstance(destination, S3DestinationBlock)
        }
        for (clients, s3_location), title in buckets.items():
            yield TitledCheck(title, in_thread(check_bucket, clients, s3_location))
        sinks = dict.fromkeys(
            (clients, sink) for table, clients in self._users for sink in table.sinks
        )
        for clients, sink in sinks:
            yield TitledCheck("sinks", in_thread(check_sink, clients, sink))

    def _profiles(self) -> Iterator[tuple[AwsClients, str | None]]:
        """Those in use, but for one that needn't be an AWS user at all."""
        for table, clients in self._users:
            for destination in (*table.destinations, *table.sinks):
                if isinstance(destination, LocalDestinationBlock):
                    continue
                named = table.profiles.get(destination.credentials or "")
                has_sts = named is not None and (named.type == "assume_role" or named.endpoint)
                if has_sts or _is_at_aws(destination):
                    yield clients, destination.credentials


def _is_at_aws(destination: S3DestinationBlock | SinkConfig) -> bool:
    return (
        sqs.is_at_aws(destination)
        if isinstance(destination, SqsSink)
        else destination.endpoint is None
    )


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
    """That it is there, and may be asked. Nothing is sent."""
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
