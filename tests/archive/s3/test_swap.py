"""The manifest's compare-and-swap: what each answer, and none, is taken for."""

from dataclasses import replace

import pytest

from laredo_archive.errors import (
    CommitConflict,
    CommitStateUnknown,
    DestinationDenied,
    DestinationUnavailable,
)
from laredo_archive.storage.s3.requests import ATTEMPTS
from tests.support.archive.s3_maker import S3Maker
from tests.support.archive.s3_way import Way
from tests.support.faults.fault import (
    Exchange,
    Fault,
    answer,
    delay,
    drop,
    duplicate,
    late,
    reset,
    truncate_request,
    without_header,
)
from tests.support.faults.proxy import FaultProxy

KEY = "t/manifest.json"
CONFLICT = answer(409, "ConditionalRequestConflict")


@pytest.fixture
def etag(way: Way) -> str:
    """Of the manifest as it is before a test's swap."""
    return way.direct.swap(KEY, b"before", None).etag


NOT_DONE = [
    drop(),
    reset(),
    answer(500, "InternalError"),
    answer(503, "ServiceUnavailable"),
    answer(503, "SlowDown"),
    truncate_request(),
]
DONE = [
    drop(after=True),
    reset(after=True),
    answer(500, "InternalError", after=True),
    answer(503, "ServiceUnavailable", after=True),
    without_header("Date"),
    without_header("ETag"),
    late(0.05),
]


@pytest.mark.parametrize("fault", [*NOT_DONE, *DONE], ids=str)
def test_what_may_be_done_is_unclear(way: Way, etag: str, fault: Fault) -> None:
    way.meets(fault, "PutObject")
    with pytest.raises(CommitStateUnknown, match=r"t/manifest\.json"):
        way.faulty.swap(KEY, b"after", etag)
    way.proxy.settle()
    assert way.read(KEY) == (b"after" if fault in DONE else b"before")
    assert way.sent("PutObject") == 1, "a change is never sent again of itself"


@pytest.mark.usefixtures("brief_patience")
def test_a_time_out_is_unclear(s3: S3Maker, proxy: FaultProxy) -> None:
    way = Way(S3Maker(s3.server), proxy)
    way.meets(delay(1.5, after=True), "PutObject")
    with pytest.raises(CommitStateUnknown, match=r"[Tt]imed? ?out"):
        way.faulty.swap(KEY, b"after", None)
    assert way.read(KEY) == b"after"


def test_our_own_swap_sent_twice_is_lost_to_itself(way: Way, etag: str) -> None:
    way.meets(duplicate(), "PutObject")
    with pytest.raises(CommitConflict):
        way.faulty.swap(KEY, b"after", etag)
    assert way.read(KEY) == b"after"


@pytest.mark.parametrize("etag_wanted", ["stale", None])
def test_another_version_is_kept(way: Way, etag: str, etag_wanted: str | None) -> None:
    way.direct.swap(KEY, b"theirs", etag)
    with pytest.raises(CommitConflict):
        way.faulty.swap(KEY, b"ours", etag if etag_wanted else None)
    assert way.read(KEY) == b"theirs"


def test_a_conflict_is_tried_again(way: Way, etag: str) -> None:
    way.meets(CONFLICT, "PutObject", times=3)
    version = way.faulty.swap(KEY, b"after", etag)
    found = way.direct.get(KEY)
    assert found is not None
    assert (found.data, found.version.etag) == (b"after", version.etag)
    assert way.sent("PutObject") == 4
    assert way.faulty.retries == {"put_object": 3}


def test_conflicts_without_end_are_unclear(way: Way, etag: str) -> None:
    way.meets(CONFLICT, "PutObject", times=None)
    with pytest.raises(CommitStateUnknown, match="ConditionalRequestConflict"):
        way.faulty.swap(KEY, b"after", etag)
    assert way.sent("PutObject") == ATTEMPTS


def test_what_was_never_sent_is_surely_not_done(way: Way, etag: str) -> None:
    with way.proxy.away(), pytest.raises(DestinationUnavailable, match="connect"):
        way.faulty.swap(KEY, b"after", etag)
    way.faulty.swap(KEY, b"after", etag)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "AccessDenied"),
        (400, "ExpiredToken"),
        (403, "RequestTimeTooSkewed"),
        (404, "NoSuchBucket"),
        (400, "KMS.DisabledException"),
        (403, "InvalidAccessKeyId"),
        (301, "PermanentRedirect"),
        (501, "NotImplemented"),
    ],
)
def test_what_somebody_has_to_cure_says_so(way: Way, etag: str, status: int, code: str) -> None:
    way.meets(answer(status, code), "PutObject", times=None)
    with pytest.raises(DestinationDenied) as caught:
        way.faulty.swap(KEY, b"after", etag)
    told = str(caught.value)
    assert way.faulty.uri_of(KEY) in told
    assert "s3:PutObject" in told
    assert "profile ambient" in told
    assert "What to do: " in told
    assert way.sent("PutObject") == 1
    assert caught.value.location == way.faulty.location


def test_bytes_that_were_changed_on_the_way_are_sent_again(way: Way, etag: str) -> None:
    way.meets(answer(400, "BadDigest"), "PutObject", times=2)
    way.faulty.swap(KEY, b"after", etag)
    assert way.read(KEY) == b"after"


def test_an_etag_that_is_no_md5(way: Way) -> None:
    """As with SSE-KMS: whatever it is, it is only ever given back."""
    way.meets(_opaque_etags(), "*Object", times=None)
    first = way.faulty.swap(KEY, b"one", None)
    assert first.etag.startswith('"opaque:')
    second = way.faulty.swap(KEY, b"two", first.etag)
    found = way.faulty.get(KEY)
    assert found is not None
    assert (found.data, found.version.etag) == (b"two", second.etag)
    with pytest.raises(CommitConflict):
        way.faulty.swap(KEY, b"three", first.etag)


def _opaque_etags() -> Fault:
    async def happen(exchange: Exchange) -> None:
        request = exchange.request
        plain = tuple((k, v.replace("opaque:", "")) for k, v in request.head.headers)
        request = replace(request, head=replace(request.head, headers=plain))
        answered = await exchange.forward(request)
        opaque = tuple(
            (k, v.replace('"', '"opaque:', 1) if k.lower() == "etag" else v)
            for k, v in answered.head.headers
        )
        await exchange.respond(replace(answered, head=replace(answered.head, headers=opaque)))

    return Fault("ETags that aren't md5", happen)


@pytest.mark.parametrize("header", ["Date", "ETag"])
def test_a_store_that_doesnt_say_what_a_manifest_needs(way: Way, etag: str, header: str) -> None:
    way.meets(without_header(header), "GetObject", times=None)
    with pytest.raises(DestinationUnavailable, match=f"answer has no {header}"):
        way.faulty.get(KEY)
