"""Listings of more than a page, and what isn't an object of an archive."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest

from laredo_archive.errors import DestinationUnavailable
from tests.support.archive.archiving import anybodys
from tests.support.archive.s3_maker import S3Maker
from tests.support.archive.s3_way import IN_2199, LARGE, Way
from tests.support.faults.fault import Exchange, Fault, answer, truncate_answer


def test_more_than_a_page(way: Way) -> None:
    names = [f"t/epoch=1/é {number:04}" for number in range(1002)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda name: way.direct.swap(name, b"x", None), names))
    way.meets(answer(503, "SlowDown"), "ListObjectsV2", skip=1)
    way.meets(truncate_answer(), "ListObjectsV2", skip=1)
    assert [found.key for found in way.faulty.list("t/")] == names
    assert way.sent("ListObjectsV2") == 4
    way.meets(answer(503, "SlowDown"), "ListObjectsV2", skip=1, times=None)
    found = []
    with pytest.raises(DestinationUnavailable, match="s3:ListBucket"):
        found.extend(way.faulty.list("t/"))
    assert len(found) == 1000, "then a failure was raised, which is no end"


def with_body(name: str, change: Callable[[bytes], bytes]) -> Fault:
    """The store's answer has another body."""

    async def happen(exchange: Exchange) -> None:
        answered = await exchange.forward()
        body = change(answered.body)
        assert body != answered.body
        await exchange.respond(replace(answered, body=body))

    return Fault(name, happen)


def test_a_listing_that_doesnt_say_where_it_goes_on(way: Way) -> None:
    def truncated(body: bytes) -> bytes:
        return body.replace(b"<IsTruncated>false<", b"<IsTruncated>true<")

    way.direct.swap("t/m", b"x", None)
    way.meets(with_body("more to come, from nowhere", truncated), "ListObjectsV2")
    with pytest.raises(DestinationUnavailable, match="names no position to continue from"):
        list(way.faulty.list("t/"))


def test_a_listing_that_goes_round_in_circles(way: Way) -> None:
    def continued(body: bytes) -> bytes:
        again = b"<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
        return body.replace(b"<IsTruncated>false</IsTruncated>", again)

    way.direct.swap("t/m", b"x", None)
    way.meets(with_body("the same page again", continued), "ListObjectsV2", times=4)
    with pytest.raises(DestinationUnavailable, match="repeats the position to continue from"):
        list(way.faulty.list("t/"))
    assert way.sent("ListObjectsV2") == 2


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        ("ListObjectsV2", "Key"),
        ("ListObjectsV2", "Size"),
        ("ListMultipartUploads", "Key"),
        ("ListMultipartUploads", "UploadId"),
        ("ListMultipartUploads", "Initiated"),
    ],
)
def test_a_listing_that_lacks_a_field(way: Way, operation: str, name: str) -> None:
    def lacking_it(body: bytes) -> bytes:
        return re.sub(f"<{name}>[^<]*</{name}>".encode(), b"", body)

    way.direct.swap("t/m", b"x", None)
    upload = way.begun("t/a", LARGE)
    way.meets(with_body(f"no {name}", lacking_it), operation)
    with pytest.raises(DestinationUnavailable, match=f"s3://.*no {name}, .*check") as lacking:
        if operation == "ListObjectsV2":
            list(way.faulty.list("t/"))
        else:
            way.faulty.collect_unfinished("t/", timedelta(0), anybodys)
    upload.abort()
    assert lacking.value.location == way.faulty.location


def test_folders_of_a_console_and_hidden_names_are_nobodys_objects(way: Way, s3: S3Maker) -> None:
    raw = s3.server.client("s3")
    prefix = way.direct.uri.removeprefix(f"s3://{s3.bucket}/")
    for name in ("", "t/", "t/.laredo-probe-1", "t//a", "t/a"):
        raw.put_object(Bucket=s3.bucket, Key=f"{prefix}{name}", Body=b"")
    assert [found.key for found in way.direct.list("")] == ["t/a"]


def test_many_left_overs(way: Way) -> None:
    uploads = [way.begun(f"t/{number}", LARGE) for number in range(3)]
    for upload in uploads:
        upload._settle_parts(every=True)  # type: ignore[attr-defined]
    assert way.direct.collect_unfinished("t/", timedelta(minutes=1), anybodys) == 0
    way.meets(answer(500, "InternalError"), "AbortMultipartUpload")
    assert way.faulty.collect_unfinished("t/", timedelta(0), anybodys) == 3
    assert way.direct.collect_unfinished("t/", timedelta(0), anybodys) == 0
    for upload in uploads:
        upload.abort()


def test_left_overs_go_by_the_stores_date(way: Way) -> None:
    upload = way.begun("t/a", LARGE)
    assert way.faulty.collect_unfinished("t/", timedelta(days=1), anybodys) == 0
    way.meets(IN_2199, "ListMultipartUploads")
    assert way.faulty.collect_unfinished("t/", timedelta(days=1), anybodys) == 1
    upload.abort()
