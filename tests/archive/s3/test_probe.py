"""A store that can't compare and swap is found out before the first commit."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from laredo_archive.errors import (
    ConditionalWritesMissing,
    DestinationDenied,
    DestinationUnavailable,
)
from laredo_archive.storage.s3.requests import ATTEMPTS
from tests.support.archive.archiving import anybodys
from tests.support.archive.s3_maker import S3Maker
from tests.support.archive.s3_way import IGNORES_ALL, IN_2199, Way, ignoring
from tests.support.faults.fault import Fault, answer, drop, reset


def nothing_left(way: Way, s3: S3Maker) -> bool:
    prefix = way.direct.uri.removeprefix(f"s3://{s3.bucket}/")
    raw = s3.server.client("s3")
    objects = raw.list_objects_v2(Bucket=s3.bucket, Prefix=prefix)["KeyCount"]
    return objects == 0 and way.direct.collect_unfinished("", timedelta(0), anybodys) == 0


@pytest.mark.parametrize("server", ["moto", "s3_server"])
def test_a_store_that_can_is_taken(makers: Callable[[str], S3Maker], server: str) -> None:
    destination = makers(server)()
    destination.probe()
    destination.probe()
    assert list(destination.list("")) == []


@pytest.mark.parametrize(
    ("operation", "fault", "what"),
    [
        ("*", IGNORES_ALL, "If-None-Match on PutObject"),
        ("PutObject", ignoring("If-None-Match"), "If-None-Match on PutObject"),
        ("*", ignoring("If-Match"), "If-Match on PutObject"),
        ("Complete*", IGNORES_ALL, "If-None-Match on CompleteMultipartUpload"),
        ("Complete*", answer(501, "NotImplemented"), "on CompleteMultipartUpload"),
        ("PutObject", answer(501, "NotImplemented"), "it refuses a request that it should accept"),
    ],
    ids=str,
)
def test_one_that_cant_is_refused(
    way: Way, s3: S3Maker, operation: str, fault: Fault, what: str
) -> None:
    way.meets(fault, operation, times=None)
    with pytest.raises(ConditionalWritesMissing, match=what) as caught:
        way.faulty.probe()
    assert "two writers could overwrite each other's manifest" in str(caught.value)
    assert "otherwise use a store" in str(caught.value)
    assert not isinstance(caught.value, DestinationUnavailable), "it isn't tried again"
    assert caught.value.location == way.faulty.location
    assert nothing_left(way, s3)


def test_one_that_makes_an_object_out_of_nothing_is_refused(way: Way) -> None:
    """If-Match on an object that isn't there: a manifest that was deleted would come back."""
    way.meets(ignoring("If-Match"), "PutObject", skip=4)
    with pytest.raises(ConditionalWritesMissing, match="an object that isn't there"):
        way.faulty.probe()


@pytest.mark.parametrize("fault", [drop(), reset(after=True), answer(503, "SlowDown")], ids=str)
@pytest.mark.parametrize("skip", [0, 2])
def test_what_couldnt_be_found_out_is_tried_again_with_another_object(
    way: Way, s3: S3Maker, fault: Fault, skip: int
) -> None:
    """A write without an answer may be done: that the object is there proves nothing."""
    way.meets(fault, "PutObject", skip=skip)
    way.faulty.probe()
    assert nothing_left(way, s3)


def test_what_stays_unavailable_isnt_held_against_it(way: Way) -> None:
    way.meets(answer(503, "SlowDown"), "PutObject", times=ATTEMPTS)
    with pytest.raises(DestinationUnavailable):
        way.faulty.probe()
    way.faulty.probe()


def test_who_may_not_write_is_told(way: Way) -> None:
    way.meets(answer(403, "AccessDenied"), "PutObject")
    with pytest.raises(DestinationDenied, match="s3:PutObject"):
        way.faulty.probe()


def test_who_may_not_delete_can_still_commit(way: Way) -> None:
    way.meets(answer(403, "AccessDenied"), "DeleteObject", skip=1, times=None)
    with capture_logs() as logs:
        way.faulty.probe()
    assert [entry["event"] for entry in logs] == ["probe object not removed"]


LEFT = ".laredo-probe-0123456789abcdef"


def test_what_a_killed_probe_left_goes_with_a_later_one(way: Way, s3: S3Maker) -> None:
    way.direct.swap(LEFT, b"x", None)
    way.faulty.probe()
    assert way.direct.head(LEFT) is not None, "it may be another process's"
    way.meets(IN_2199, "ListObjectsV2")
    way.faulty.probe()
    assert nothing_left(way, s3)


def test_an_upload_that_a_killed_probe_left_goes_with_a_later_one(way: Way, s3: S3Maker) -> None:
    prefix = way.direct.uri.removeprefix(f"s3://{s3.bucket}/")
    raw, left = s3.server.client("s3"), f"{prefix}{LEFT}"
    raw.create_multipart_upload(Bucket=s3.bucket, Key=left)

    def uploads() -> list[str]:
        listed = raw.list_multipart_uploads(Bucket=s3.bucket, Prefix=prefix)
        return [upload["Key"] for upload in listed.get("Uploads", ())]

    way.meets(drop(after=True), "CreateMultipartUpload")
    way.faulty.probe()
    assert uploads() == [left], "its own are gone, that one may be another process's"
    way.meets(IN_2199, "ListMultipartUploads")
    way.faulty.probe()
    assert uploads() == []


def test_what_only_begins_as_a_probe_does_stays(way: Way, s3: S3Maker) -> None:
    """Somebody's file; nothing of ours has such a name."""
    way.direct.swap(".laredo-probe-notes.txt", b"x", None)
    way.meets(IN_2199, "ListObjectsV2")
    way.faulty.probe()
    assert way.direct.head(".laredo-probe-notes.txt") is not None
