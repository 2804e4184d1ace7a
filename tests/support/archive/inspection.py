"""An archive looked at from outside, wherever it is: whole, true, and nothing left over."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from io import BytesIO
from pathlib import Path
from urllib.parse import parse_qs

from laredo_archive import codec
from laredo_archive.aws.clients import AwsClients
from laredo_archive.manifest import parser, rules
from laredo_archive.manifest.model import Artifact, Manifest
from laredo_archive.storage.destination import Destination
from laredo_archive.storage.local import UNFINISHED, LocalDestination
from laredo_archive.storage.s3.bucket import S3Location, parse
from laredo_archive.storage.s3.destination import S3Destination
from laredo_model.line import Action
from tests.support.archive.archiving import MANIFEST
from tests.support.archive.truth import COLUMNS, State

Truth = Callable[[int], State]
"""The table at a position."""


def read_descriptions() -> None:
    """Read what boto3 knows of S3 now, so that processes forked from this one needn't."""
    AwsClients().client("s3", region="us-east-1", endpoint="http://127.0.0.1:1")


@cache
def clients() -> AwsClients:
    """This process's clients."""
    return AwsClients()


# A connection can't be used by two processes.
os.register_at_fork(after_in_child=clients.cache_clear)


def destination_at(place: str | Path) -> Destination:
    """A directory, or ``s3://bucket/prefix/?endpoint=URL``."""
    where = _in_s3(place)
    return LocalDestination(place) if where is None else S3Destination(where, clients())


def _in_s3(place: str | Path) -> S3Location | None:
    uri, _, query = str(place).partition("?")
    if not uri.startswith("s3://"):
        return None
    endpoint = parse_qs(query)["endpoint"][0]
    return replace(parse(uri), endpoint=endpoint, addressing="path")


def unfinished(place: str | Path) -> list[str]:
    """Uploads that were begun there, and neither finished nor dropped."""
    where = _in_s3(place)
    if where is None:
        return [str(left) for left in Path(place).rglob(f"{UNFINISHED}*") if left.is_file()]
    s3 = clients().client("s3", endpoint=where.endpoint, addressing="path")
    listed = s3.list_multipart_uploads(Bucket=where.bucket, Prefix=where.prefix)
    return [upload["Key"] for upload in listed.get("Uploads", ())]


def manifest_of(place: Destination) -> Manifest | None:
    """The manifest, which must be valid; None if there is none."""
    found = place.get(MANIFEST)
    if found is None:
        return None
    manifest = parser.parse(found.data, place.uri)
    assert list(rules.check(manifest)) == [], place.uri
    return manifest


def assert_true(place: Destination, manifest: Manifest, truth: Truth) -> None:
    """Every artifact is whole, in every format, and leads to the table at its boundary."""
    states: dict[str, State] = {}
    for artifact in manifest.artifacts:
        for format_id, entry in artifact.formats.items():
            with place.open(entry.key) as file:
                data = file.read()
            found = len(data), hashlib.sha256(data).hexdigest()
            assert found == (entry.size_bytes, entry.sha256), entry.uri
            before = states.get(format_id, {})
            states[format_id] = _folded(before, artifact, format_id, data)
            assert states[format_id] == truth(artifact.to_position), entry.uri


def assert_nothing_left_over(place: Destination, manifest: Manifest) -> None:
    """No object but those that are named, and nothing waits to be deleted."""
    kept = manifest.kept_keys() | {MANIFEST}
    assert {info.key for info in place.list("")} == kept
    assert manifest.retired == ()


def _folded(state: State, artifact: Artifact, format_id: str, data: bytes) -> State:
    file = BytesIO(data)
    if artifact.is_snapshot:
        rows = codec.read_snapshot(format_id, COLUMNS, file)
        return {key: line for keys, lines in rows for key, line in zip(keys, lines, strict=True)}
    state = dict(state)
    for change in codec.read_diff(format_id, COLUMNS, file):
        if change.action is Action.TRUNCATE:
            state.clear()
        elif change.action is Action.DELETE:
            del state[change.key]
        else:
            assert change.new is not None
            state[change.key] = change.new
    return state
