"""A writer of archives on S3: ``python -m benchmarks.s3_writer ...``; prints JSON lines.

``base`` writes a base as the snapshotter does, ``encode`` the same to nowhere, ``bare``
uploads a file of the same bytes with boto3's transfer manager; ``diffs`` commits small
diffs one after the other, ``requests`` sends bare requests like theirs.
"""

import hashlib
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import boto3
import structlog
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from benchmarks.counting_client import tell
from benchmarks.s3_stores import BUCKET
from laredo_archive import codec
from laredo_archive.aws.clients import AwsClients, Called
from laredo_archive.storage.s3.bucket import S3Location
from laredo_archive.storage.s3.destination import S3Destination
from laredo_archive.write.table_archive import TableArchive
from laredo_model.checksum import StateChecksum
from laredo_model.column import Column
from laredo_model.line import Action, Change
from laredo_model.position import History, Position
from laredo_snapshotter.app import service

TABLE = "public.bench"
HISTORY = History(7300, 1, 5)
COLUMNS = (
    Column("id", "int8", -1, nullable=False, ordinal=1, key_ordinal=1),
    Column("v", "text", -1, nullable=True, ordinal=2, key_ordinal=None),
)
_BLOCK_BYTES = 540_000
"""As the client library gives them."""
_DISTINCT_BYTES = 5_000_000
"""Of different lines; after them the same come again, under other keys."""


def blocks(rows: int, line_bytes: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Keys and lines, in key order."""
    size = _BLOCK_BYTES // line_bytes
    lines = [_line(number, line_bytes) for number in range(_DISTINCT_BYTES // line_bytes)]
    made = [lines[start : start + size] for start in range(0, len(lines) - size + 1, size)]
    for start in range(0, rows, size):
        count = min(size, rows - start)
        keys = [b"%012d" % key for key in range(start, start + count)]
        yield keys, made[start // size % len(made)][:count]


def _line(number: int, size: int) -> bytes:
    text = b'{"id":%d,"v":"' % number
    noise = hashlib.sha256(text).hexdigest().encode()
    return text + (noise * (size // len(noise) + 1))[: size - len(text) - 2] + b'"}'


def opened(arguments: Namespace, calls: "Counter[str]") -> TableArchive:
    """An archive that nobody had before, on each of the endpoints."""

    def count(called: Called) -> None:
        calls[called.operation] += 1

    clients = AwsClients(on_call=count)
    prefix = token_hex(8)
    places = [
        S3Location(BUCKET, f"{prefix}/{number}", endpoint=endpoint, addressing="path")
        for number, endpoint in enumerate(arguments.endpoints)
    ]
    return TableArchive.open(
        [S3Destination(place, clients) for place in places], TABLE, key_prefix="bench/"
    )


def base(arguments: Namespace) -> None:
    """From the first row to the manifest that names the artifact."""
    calls: Counter[str] = Counter()
    with opened(arguments, calls) as archive:
        rows = blocks(arguments.rows, arguments.line_bytes)
        first = next(rows)
        began, busy, cpu = time.perf_counter(), time.thread_time(), time.process_time()
        with _snapshot(archive, arguments.formats) as upload:
            upload.write(*first)
            for keys, lines in rows:
                upload.write(keys, lines)
            made = upload.finish(None)
        archive.commit_base(made, continues=False)
        seconds, busy = time.perf_counter() - began, time.thread_time() - busy
        cpu = time.process_time() - cpu
    size = sum(entry.size_bytes for entry in made.artifact.formats.values())
    tell(seconds=seconds, busy=busy / seconds, cpu=cpu, bytes=size, calls=calls)


def encode(arguments: Namespace) -> None:
    """Encode a base without a store; with ``--file`` it is kept."""
    target = Path(arguments.file or "/dev/null").open("wb")  # noqa: SIM115  # closed below
    rows = blocks(arguments.rows, arguments.line_bytes)
    first = next(rows)
    began = time.perf_counter()
    checksum = StateChecksum()
    encoder = codec.snapshot_encoder("jsonl", COLUMNS, target)
    for keys, lines in (first, *rows):
        encoder.write(keys, lines)
        checksum.add(lines)
    encoder.close()
    target.close()
    tell(seconds=time.perf_counter() - began)


def bare(arguments: Namespace) -> None:
    """The transfer manager as it comes: 8 MB parts, ten threads."""
    client = _plain_client(arguments.endpoints[0])
    client.head_bucket(Bucket=BUCKET)
    began, cpu = time.perf_counter(), time.process_time()
    client.upload_file(arguments.file, BUCKET, f"bare/{token_hex(8)}", Config=TransferConfig())
    tell(seconds=time.perf_counter() - began, cpu=time.process_time() - cpu)


def diffs(arguments: Namespace) -> None:
    """Seconds of each commit of a small diff, and the requests it took."""
    calls: Counter[str] = Counter()
    with opened(arguments, calls) as archive:
        state = {b"%03d" % key: _line(key, 280) for key in range(100)}
        with _snapshot(archive, arguments.formats) as upload:
            upload.write(list(state), list(state.values()))
            archive.commit_base(upload.finish(None), continues=False)
        checksum = StateChecksum()
        checksum.add(list(state.values()))
        changes = [Change(Action.UPDATE, key, line, line) for key, line in state.items()][:10]
        seconds = []
        calls.clear()
        for number in range(arguments.commits):
            began = time.perf_counter()
            archive.commit_diff(
                iter(changes),
                from_position=Position(16 + number),
                to_position=Position(17 + number),
                to_time=None,
                rows=checksum.rows,
                checksum=checksum.hex(),
                formats=arguments.formats,
            )
            seconds.append(time.perf_counter() - began)
    tell(seconds=seconds, calls={name: n / arguments.commits for name, n in calls.items()})


def requests(arguments: Namespace) -> None:
    """The least that a commit is: a PUT, a HEAD, and a PUT for each manifest, by boto3 alone."""
    client = _plain_client(arguments.endpoints[0])
    body, manifest = b"x" * 3000, b"m" * 20_000
    seconds = []
    for _ in range(arguments.commits):
        key = f"bare/{token_hex(8)}"
        began = time.perf_counter()
        client.put_object(Bucket=BUCKET, Key=key, Body=body, IfNoneMatch="*")
        client.head_object(Bucket=BUCKET, Key=key)
        for number in range(len(arguments.endpoints)):
            client.put_object(Bucket=BUCKET, Key=f"bare/manifest-{number}", Body=manifest)
        seconds.append(time.perf_counter() - began)
    tell(seconds=seconds)


def _snapshot(archive: TableArchive, formats: list[str]):  # type: ignore[no-untyped-def]
    return archive.snapshot(
        position=Position(16), history=HISTORY, columns=COLUMNS, key_fields=["id"], formats=formats
    )


def _plain_client(endpoint: str):  # type: ignore[no-untyped-def]
    config = Config(s3={"addressing_style": "path"}, max_pool_connections=10)
    return boto3.client("s3", endpoint_url=endpoint, config=config)


def _arguments() -> Namespace:
    parser = ArgumentParser()
    parser.add_argument("what", choices=["base", "encode", "bare", "diffs", "requests"])
    parser.add_argument("endpoints", nargs="*")
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--line-bytes", type=int, default=280)
    parser.add_argument("--formats", nargs="+", default=["jsonl"])
    parser.add_argument("--commits", type=int, default=0)
    parser.add_argument("--file")
    return parser.parse_args()


if __name__ == "__main__":
    service.give_back()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    arguments = _arguments()
    {"base": base, "encode": encode, "bare": bare, "diffs": diffs, "requests": requests}[
        arguments.what
    ](arguments)
