"""Requests as they are on the wire: checksums, conditions, storage options, addresses."""

import base64
import hashlib
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from laredo_archive.storage.s3.destination import S3Destination
from laredo_archive.storage.s3.requests import PARALLEL_PARTS
from laredo_archive.storage.s3.upload import PART_BYTES, Lanes, part_bytes
from tests.support.archive.objects import put
from tests.support.archive.s3_maker import S3Maker
from tests.support.archive.s3_way import LARGE, Way
from tests.support.faults.fault import Exchange, Fault, Rule, refusal
from tests.support.faults.http1 import Message
from tests.support.faults.operation import Operation

SMALL = b"small"
TWO_REAL_PARTS = bytes(PART_BYTES + 1)


def everything(destination: S3Destination, large: bytes = LARGE) -> None:
    """One of each that writes."""
    put(destination, "t/small", SMALL)
    put(destination, "t/large", large)
    version = destination.swap("t/m", b"one", None)
    destination.swap("t/m", b"two", version.etag)


def sha256_of(body: bytes) -> str:
    return base64.b64encode(hashlib.sha256(body).digest()).decode()


@pytest.fixture
def seen(way: Way) -> list[tuple[Operation, Message]]:
    """Every request that reaches the store."""
    requests: list[tuple[Operation, Message]] = []
    way.proxy.witnesses.append(lambda operation, sent, _: requests.append((operation, sent)))
    return requests


def test_every_body_goes_with_its_sha256(way: Way, seen: list[tuple[Operation, Message]]) -> None:
    everything(way.faulty)
    bodies = [(o.name, m) for o, m in seen if o.name in ("PutObject", "UploadPart")]
    assert [name for name, _ in bodies].count("UploadPart") == 2
    for _, message in bodies:
        assert message.head.get("x-amz-checksum-sha256") == sha256_of(message.body)
    assert b"".join(m.body for n, m in bodies if n == "UploadPart") != b""
    [begun] = [m for o, m in seen if o.name == "CreateMultipartUpload"]
    assert begun.head.get("x-amz-checksum-algorithm") == "SHA256"
    [complete] = [m.body.decode() for o, m in seen if o.name == "CompleteMultipartUpload"]
    listed = re.findall(r"<ChecksumSHA256>(.*?)</ChecksumSHA256>", complete)
    parts = [LARGE[: part_bytes(1)], LARGE[part_bytes(1) :]]
    assert listed == [sha256_of(part) for part in parts]
    assert re.findall(r"<PartNumber>(\d+)</PartNumber>", complete) == ["1", "2"]


def test_every_write_has_its_condition(way: Way, seen: list[tuple[Operation, Message]]) -> None:
    everything(way.faulty)
    made = {"PutObject", "CompleteMultipartUpload"}
    conditions = [
        (message.head.get("If-None-Match"), bool(message.head.get("If-Match")))
        for operation, message in seen
        if operation.name in made
    ]
    assert conditions == [("*", False), ("*", False), ("*", False), (None, True)]


class _Checking:
    """A store that checks what it gets, as S3 does and the test servers don't; ``damaged``:
    how many requests are damaged on the way to it."""

    def __init__(self, damaged: int) -> None:
        self.damaged = damaged
        self.refused = 0

    async def __call__(self, exchange: Exchange) -> None:
        request = exchange.request
        if self.damaged:
            self.damaged -= 1
            request = replace(request, body=b"?" + request.body[1:])
        told = request.head.get("x-amz-checksum-sha256")
        if told == sha256_of(request.body):
            await exchange.respond(await exchange.forward(request))
        else:
            self.refused += 1
            await exchange.respond(refusal(exchange.operation, 400, "BadDigest"))


def test_what_is_damaged_on_the_way_is_found_and_sent_again(way: Way) -> None:
    checking = _Checking(3)
    way.proxy.add(Rule(Fault("checks", checking), "PutObject|UploadPart", times=None))
    everything(way.faulty)
    assert (checking.damaged, checking.refused) == (0, 3)
    assert way.read("t/small") == SMALL
    assert way.read("t/large") == LARGE
    assert way.read("t/m") == b"two"


KEPT = {
    "server_side_encryption": "aws:kms",
    "kms_key_id": "arn:aws:kms:us-east-1:123456789012:key/1234abcd",
    "storage_class": "STANDARD_IA",
    "tags": {"team": "a b+c", "cost/centre": "=x:1@y"},
}


@pytest.fixture
def told(makers: Callable[[str], S3Maker]) -> Callable[[S3Destination, str], dict[str, object]]:
    """moto's attributes of an object, by their names in S3Access."""
    server = makers("moto").server.client("s3")

    def tell(destination: S3Destination, key: str) -> dict[str, object]:
        bucket, _, key = destination.uri_of(key).removeprefix("s3://").partition("/")
        head = server.head_object(Bucket=bucket, Key=key)
        tags = server.get_object_tagging(Bucket=bucket, Key=key)["TagSet"]
        return {
            "server_side_encryption": head.get("ServerSideEncryption"),
            "kms_key_id": head.get("SSEKMSKeyId"),
            "storage_class": head.get("StorageClass"),
            "tags": {tag["Key"]: tag["Value"] for tag in tags},
        }

    return tell


@pytest.mark.usefixtures("real_parts")
def test_objects_are_kept_as_configured(
    makers: Callable[[str], S3Maker], told: Callable[[S3Destination, str], dict[str, object]]
) -> None:
    destination = makers("moto")(**KEPT)
    everything(destination, TWO_REAL_PARTS)
    assert told(destination, "t/small") == KEPT
    assert told(destination, "t/large") == KEPT
    assert told(destination, "t/m") == {**KEPT, "storage_class": None}, "rewritten all the time"


@pytest.mark.usefixtures("real_parts")
def test_without_a_word_it_is_as_the_bucket_says(
    makers: Callable[[str], S3Maker], told: Callable[[S3Destination, str], dict[str, object]]
) -> None:
    destination = makers("moto")(server_side_encryption="AES256")
    everything(destination, TWO_REAL_PARTS)
    for key in ("t/small", "t/large", "t/m"):
        assert told(destination, key) == {
            "server_side_encryption": "AES256",
            "kms_key_id": None,
            "storage_class": None,
            "tags": {},
        }


@pytest.fixture
def names_of_localhost(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``anything.localhost`` is this machine, as some resolvers say too."""
    real = socket.getaddrinfo

    def resolve(host: str, *more: object, **named: object) -> object:
        return real("127.0.0.1" if host.endswith(".localhost") else host, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    yield


@pytest.mark.usefixtures("names_of_localhost")
@pytest.mark.parametrize(
    ("addressing", "virtual"), [("path", False), ("virtual", True), ("auto", False)]
)
def test_addressing(way: Way, s3: S3Maker, addressing: str, virtual: bool) -> None:
    """``auto`` is path for an endpoint that isn't AWS's."""
    hosts: list[tuple[str | None, str]] = []
    way.proxy.witnesses.append(
        lambda _, sent, __: hosts.append((sent.head.get("Host"), sent.head.start))
    )
    host = f"s3.localhost:{way.proxy.port}"
    s3(endpoint=f"http://{host}", addressing=addressing).get("t/m")
    [(asked, start)] = hosts
    assert asked == (f"{s3.bucket}.{host}" if virtual else host)
    assert start.startswith(f"GET /{s3.bucket}/") is not virtual


@pytest.mark.usefixtures("real_parts")
def test_parts_of_one_object_reach_5_tb() -> None:
    sizes = [part_bytes(number) for number in range(1, 10_001)]
    assert sum(sizes) >= 5 << 40
    assert max(sizes) <= 5 << 30
    assert min(sizes) >= 5 << 20
    assert all(one <= other for one, other in pairwise(sizes))
    assert part_bytes(5 * (1 << 30) // sizes[0]) == sizes[0], "5 GB in small parts"


def test_a_part_that_no_thread_takes_leaves_its_room() -> None:
    lanes = Lanes()
    lanes._threads.shutdown()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cannot schedule"):
            lanes.send(PARALLEL_PARTS * PART_BYTES, dict)
        assert lanes._taken == 0
