"""The end of an upload: what each answer, and none, is taken for; nothing is replaced or left."""

import hashlib
import io
from contextlib import closing, suppress
from datetime import timedelta
from threading import Event

import pytest

from laredo_archive.errors import (
    CommitStateUnknown,
    DestinationDenied,
    DestinationUnavailable,
    NameTaken,
)
from laredo_archive.manifest.object_keys import NewNames
from laredo_archive.storage.s3.requests import ATTEMPTS, PART_ATTEMPTS
from laredo_archive.write.manifest_store import Environment
from laredo_archive.write.uploads import Content, store_object
from tests.support.archive.archiving import anybodys
from tests.support.archive.s3_way import LARGE, Way
from tests.support.faults.fault import (
    Fault,
    answer,
    delay,
    drop,
    error_in_200,
    late,
    reset,
    truncate_request,
    without_header,
)
from tests.support.processes import wait_until

KEY = "t/epoch=1/a"
SMALL = b"small"
LAST = {SMALL: "PutObject", LARGE: "CompleteMultipartUpload"}
"""The request that makes it an object."""

sizes = pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])

BEFORE = [drop(), reset(), answer(500, "InternalError"), answer(503, "SlowDown")]
AFTER = [drop(after=True), reset(after=True), answer(500, "InternalError", after=True)]


@pytest.fixture(autouse=True)
def nothing_is_left(way: Way):  # type: ignore[no-untyped-def]
    yield
    assert way.direct.collect_unfinished("", timedelta(0), anybodys) == 0


@sizes
@pytest.mark.parametrize("fault", BEFORE, ids=str)
def test_one_that_didnt_come_in_is_finished_again(way: Way, data: bytes, fault: Fault) -> None:
    way.meets(fault, LAST[data])
    upload = way.begun(KEY, data)
    with pytest.raises(CommitStateUnknown, match="epoch=1/a"):
        upload.finish()
    assert way.read(KEY) is None
    upload.finish()
    upload.abort()
    assert way.read(KEY) == data


REPEATED = [
    answer(404, "NoSuchUpload"),
    answer(412, "PreconditionFailed"),
]
"""Answers of S3 to a CompleteMultipartUpload that it has carried out; or it answers 200 again."""


@pytest.mark.parametrize("fault", AFTER, ids=str)
@pytest.mark.parametrize(("data", "then"), [(SMALL, []), *((LARGE, [each]) for each in REPEATED)])
def test_one_whose_answer_was_lost_finds_itself(
    way: Way, fault: Fault, data: bytes, then: list[Fault]
) -> None:
    for each in (fault, *then):
        way.meets(each, LAST[data])
    upload = way.begun(KEY, data)
    with pytest.raises(CommitStateUnknown):
        upload.finish()
    with pytest.raises(NameTaken):
        upload.finish()
    upload.abort()
    assert way.read(KEY) == data


def test_parts_that_somebody_dropped_are_gone(way: Way) -> None:
    way.meets(drop(), "CompleteMultipartUpload")
    upload = way.begun(KEY, LARGE)
    with pytest.raises(CommitStateUnknown):
        upload.finish()
    assert way.direct.collect_unfinished("", timedelta(0), anybodys) == 1
    for _ in range(2):
        with pytest.raises(DestinationUnavailable, match="NoSuchUpload"):
            upload.finish()
    upload.abort()


@sizes
@pytest.mark.parametrize("fault", [*BEFORE, *AFTER, late(0.05)], ids=str)
def test_in_the_end_it_is_there_once_under_its_name(way: Way, data: bytes, fault: Fault) -> None:
    way.meets(fault, LAST[data], times=2)
    sha256 = hashlib.sha256(data).hexdigest()
    content = Content("here", len(data), sha256, lambda: closing(io.BytesIO(data)))
    environment = Environment(pause=lambda _: None)
    name = store_object(
        way.faulty, KEY, content, avoid=(), new_names=NewNames("w"), environment=environment
    )
    way.proxy.settle()
    assert name == KEY
    assert [(found.key, found.size_bytes) for found in way.direct.list("")] == [(KEY, len(data))]


def test_a_part_without_an_etag_is_refused(way: Way) -> None:
    way.meets(without_header("ETag"), "UploadPart", times=None)
    upload = way.faulty.upload(KEY)
    with pytest.raises(DestinationUnavailable, match="answer has no ETag"):
        upload.write(LARGE)
        upload.finish()
    with pytest.raises(DestinationUnavailable, match="answer has no ETag"):
        upload.finish()
    upload.abort()
    assert way.read(KEY) is None


@sizes
def test_a_conflict_is_tried_again(way: Way, data: bytes) -> None:
    way.meets(answer(409, "ConditionalRequestConflict"), LAST[data], times=2)
    upload = way.begun(KEY, data)
    upload.finish()
    assert way.read(KEY) == data
    assert way.sent(LAST[data]) == 3


@sizes
def test_conflicts_without_end_are_unclear(way: Way, data: bytes) -> None:
    way.meets(answer(409, "ConditionalRequestConflict"), LAST[data], times=None)
    upload = way.begun(KEY, data)
    with pytest.raises(CommitStateUnknown, match="ConditionalRequestConflict"):
        upload.finish()
    assert way.sent(LAST[data]) == ATTEMPTS
    upload.abort()


@sizes
def test_one_that_was_refused_for_a_reason_says_which(way: Way, data: bytes) -> None:
    way.meets(answer(403, "AccessDenied"), LAST[data])
    upload = way.begun(KEY, data)
    with pytest.raises(DestinationDenied, match=r"s3:PutObject .* profile ambient.*AccessDenied"):
        upload.finish()
    upload.abort()


def test_an_error_in_a_200_is_no_success(way: Way) -> None:
    """CompleteMultipartUpload sends its 200 before it knows."""
    way.meets(error_in_200(), "CompleteMultipartUpload")
    upload = way.begun(KEY, LARGE)
    with pytest.raises(CommitStateUnknown, match="InternalError"):
        upload.finish()
    assert way.read(KEY) is None
    upload.finish()
    assert way.read(KEY) == LARGE


@sizes
def test_the_store_away(way: Way, data: bytes) -> None:
    upload = way.begun(KEY, data)
    with way.proxy.away():
        with pytest.raises(DestinationUnavailable):
            upload.finish()
        upload.abort()
    # What couldn't be aborted then is dropped by a claim.
    assert way.direct.collect_unfinished("", timedelta(0), anybodys) == (data is LARGE)


PASSING = [
    drop(),
    drop(after=True),
    reset(after=True),
    answer(500, "InternalError"),
    answer(503, "SlowDown", after=True),
    answer(400, "BadDigest"),
    answer(400, "XAmzContentChecksumMismatch"),
    truncate_request(),
]


@pytest.mark.parametrize("fault", PASSING, ids=str)
def test_a_part_is_sent_again(way: Way, fault: Fault) -> None:
    rule = way.meets(fault, "UploadPart", times=2)
    upload = way.begun(KEY, LARGE)
    upload.finish()
    upload.abort()
    assert way.read(KEY) == LARGE
    assert rule.happened == 2
    assert way.faulty.retries == {"upload_part": 2}


@pytest.mark.parametrize("operation", ["CreateMultipartUpload", "UploadPart"])
def test_a_part_that_never_arrives_ends_the_upload(way: Way, operation: str) -> None:
    way.meets(answer(500, "InternalError"), operation, times=None)
    upload = way.faulty.upload(KEY)
    with pytest.raises(DestinationUnavailable) as first:
        upload.write(LARGE)
        upload.finish()
    assert ATTEMPTS < way.sent(operation) <= 2 * PART_ATTEMPTS
    for again in (upload.finish, lambda: upload.write(LARGE)):
        with pytest.raises(DestinationUnavailable) as later:
            again()
        assert str(later.value) == str(first.value)
    upload.abort()
    assert way.read(KEY) is None


def test_a_part_that_is_denied_isnt_sent_again(way: Way) -> None:
    way.meets(answer(403, "AccessDenied"), "CreateMultipartUpload", times=None)
    upload = way.faulty.upload(KEY)
    with pytest.raises(DestinationDenied, match="s3:PutObject"):
        upload.write(LARGE)
    assert way.sent("CreateMultipartUpload") == 1
    upload.abort()


def test_an_abort_never_raises(way: Way) -> None:
    rule = way.meets(answer(403, "AccessDenied"), "AbortMultipartUpload")
    upload = way.begun(KEY, LARGE)
    upload.abort()
    assert rule.happened == 1
    assert way.direct.collect_unfinished("", timedelta(0), anybodys) == 1


def test_an_abort_comes_after_the_parts_on_their_way(way: Way) -> None:
    """A part that S3 gets after the abort stays, and is paid for."""
    arrived: list[str] = []
    way.proxy.witnesses.append(lambda operation, *_: arrived.append(operation.name))
    way.meets(delay(0.3), "UploadPart")
    upload = way.begun(KEY, LARGE)
    wait_until(lambda: way.sent("UploadPart"), "the part is on its way")
    upload.abort()
    way.proxy.witnesses.clear()
    assert arrived == ["CreateMultipartUpload", "UploadPart", "AbortMultipartUpload"]


def test_an_abort_ends_the_waiting_between_tries(way: Way, s3) -> None:  # type: ignore[no-untyped-def]
    """Else a writer that stops would wait for parts that it doesn't want any more."""
    patient = s3(endpoint=way.proxy.endpoint, pause=Event.wait)
    rule = way.meets(answer(503, "SlowDown"), "UploadPart", times=None)
    upload = patient.upload(KEY)
    with suppress(DestinationUnavailable):
        upload.write(LARGE)
    upload.abort()
    happened = rule.happened
    assert happened < ATTEMPTS
    assert patient.collect_unfinished("", timedelta(0), anybodys) == 0
