"""Reads: repeated, resumed, of one version only, and never short."""

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from laredo_archive.errors import (
    ArtifactMissing,
    DestinationDenied,
    DestinationError,
    DestinationUnavailable,
)
from laredo_archive.storage.s3.destination import S3Destination
from laredo_archive.storage.s3.requests import ATTEMPTS
from tests.support.archive.archiving import anybodys
from tests.support.archive.objects import put, read
from tests.support.archive.s3_maker import S3Maker
from tests.support.archive.s3_way import Way
from tests.support.faults.fault import (
    Exchange,
    Fault,
    answer,
    delay,
    drop,
    reset,
    truncate_answer,
    without_header,
)
from tests.support.faults.http1 import Message
from tests.support.faults.proxy import FaultProxy

KEY = "t/a"
LARGE = b"0123456789" * 400_000
"""Some times what is read at once."""
PIECE = 1 << 20


def get(place: S3Destination) -> tuple[bytes, str] | None:
    found = place.get(KEY)
    # Not the date, which is the answer's.
    return found and (found.data, found.version.etag)


USES: dict[str, tuple[str, Callable[[S3Destination], Any]]] = {
    "get": ("GetObject", get),
    "head": ("HeadObject", lambda place: place.head(KEY)),
    "open": ("GetObject", lambda place: read(place, KEY)),
    "list": ("ListObjectsV2", lambda place: list(place.list("t/"))),
    "unfinished": (
        "ListMultipartUploads",
        lambda place: place.collect_unfinished("t/", timedelta(days=1), anybodys),
    ),
}
PASSING = [
    drop(),
    drop(after=True),
    reset(),
    answer(500, "InternalError"),
    answer(503, "SlowDown"),
    truncate_answer(),
]

uses_and_faults = pytest.mark.parametrize(
    ("use", "fault"),
    [
        pytest.param(
            use,
            fault,
            id=f"{use}-{fault}",
            # All go through the same retries: each use once, and each fault once.
            marks=() if use == "open" or fault is PASSING[0] else pytest.mark.thorough,
        )
        for use in USES
        for fault in PASSING
        # The answer to HEAD has no body that could be truncated.
        if not (use == "head" and "truncated" in fault.name)
    ],
)


@uses_and_faults
def test_a_read_is_sent_again(way: Way, use: str, fault: Fault) -> None:
    put(way.direct, KEY, b"0123456789")
    operation, ask = USES[use]
    rule = way.meets(fault, operation, times=2)
    assert ask(way.faulty) == ask(way.direct)
    assert rule.happened == 2


@uses_and_faults
def test_but_not_for_ever(way: Way, use: str, fault: Fault) -> None:
    put(way.direct, KEY, b"0123456789")
    operation, ask = USES[use]
    way.meets(fault, operation, times=None)
    with capture_logs() as logs, pytest.raises(DestinationUnavailable):
        ask(way.faulty)
    levels = [each["log_level"] for each in logs if each["event"] == "S3 request retried"]
    assert levels.count("warning") == 1 and len(levels) >= ATTEMPTS - 1
    # A stream may have come some way before.
    assert ATTEMPTS <= way.sent(operation) <= (2 * ATTEMPTS if use == "open" else ATTEMPTS)


@pytest.mark.parametrize("use", USES)
def test_what_is_denied_isnt_sent_again(way: Way, use: str) -> None:
    operation, ask = USES[use]
    way.meets(answer(403, "AccessDenied"), operation, times=None)
    with pytest.raises(DestinationDenied, match=r"profile ambient"):
        ask(way.faulty)
    assert way.sent(operation) == 1


def test_a_stream_that_breaks_off_goes_on_where_it_was(way: Way) -> None:
    put(way.direct, KEY, LARGE)
    way.meets(truncate_answer(0.4), "GetObject", times=3)
    assert read(way.faulty, KEY) == LARGE
    assert way.sent("GetObject") == 4
    way.meets(truncate_answer(0.4), "GetObject", times=3)
    assert read(way.faulty, KEY, 1_234_567) == LARGE[1_234_567:]


@pytest.mark.usefixtures("brief_patience")
def test_a_stream_that_stands_still_goes_on_too(s3: S3Maker, proxy: FaultProxy) -> None:
    way = Way(S3Maker(s3.server), proxy)
    put(way.direct, KEY, LARGE)
    way.meets(delay(1.5, after=True), "GetObject")
    assert read(way.faulty, KEY) == LARGE


def test_a_stream_that_moves_may_break_as_often_as_it_likes(way: Way) -> None:
    put(way.direct, KEY, LARGE)
    rule = way.meets(truncate_answer(0.3), "GetObject", times=3 * ATTEMPTS)
    assert read(way.faulty, KEY) == LARGE
    assert rule.happened == 3 * ATTEMPTS


def test_a_body_that_is_short_is_never_taken_for_whole(way: Way) -> None:
    put(way.direct, KEY, LARGE)
    way.meets(truncate_answer(0.5), "GetObject")
    way.meets(truncate_answer(0.0), "GetObject", times=None)
    got = bytearray()
    with (
        closing(way.faulty.open(KEY)) as file,
        pytest.raises(DestinationUnavailable, match="s3:GetObject"),
    ):
        while piece := file.read(PIECE):
            got += piece
    assert len(got) < len(LARGE)
    assert LARGE.startswith(bytes(got))


def _then(way: Way, change: Callable[[], object]) -> Exception:
    """Error that a reader in the middle of an object gets after ``change``."""
    put(way.direct, KEY, LARGE)
    way.meets(truncate_answer(0.5), "GetObject")
    with closing(way.faulty.open(KEY)) as file:
        assert file.read(PIECE) == LARGE[:PIECE]
        change()
        with pytest.raises((DestinationError, ArtifactMissing)) as caught:
            file.read()
    return caught.value


def test_versions_are_never_mixed(way: Way) -> None:
    def replace_it() -> None:
        way.direct.delete(KEY)
        put(way.direct, KEY, b"x" * len(LARGE))

    told = _then(way, replace_it)
    assert isinstance(told, DestinationUnavailable)
    assert "replaced while it was being read" in str(told)


def test_nor_where_the_store_ignores_if_match(way: Way) -> None:
    def replace_it() -> None:
        way.direct.delete(KEY)
        put(way.direct, KEY, b"x" * len(LARGE))
        way.meets(without("If-Match"), "GetObject", times=None)

    assert "replaced while it was being read" in str(_then(way, replace_it))


def test_one_that_is_deleted_meanwhile_is_missing(way: Way) -> None:
    assert isinstance(_then(way, lambda: way.direct.delete(KEY)), ArtifactMissing)


def test_a_store_without_ranges_is_refused(way: Way) -> None:
    put(way.direct, KEY, LARGE)
    way.meets(without("Range"), "GetObject", times=None)
    with pytest.raises(DestinationUnavailable, match="store that honours Range"):
        way.faulty.open(KEY, 5)
    assert read(way.faulty, KEY) == LARGE


class EndsWithConnection(Message):
    """An answer that doesn't say how long it is."""

    def to_bytes(self, *, close: bool = False) -> bytes:
        lines = super().to_bytes(close=True).split(b"\r\n")
        return b"\r\n".join(line for line in lines if not line.startswith(b"Content-Length"))


def test_an_answer_of_unknown_length_is_refused(way: Way) -> None:
    async def happen(exchange: Exchange) -> None:
        answered = await exchange.forward()
        await exchange.respond(EndsWithConnection(answered.head, answered.body))
        exchange.hang_up()

    put(way.direct, KEY, b"0123456789")
    way.meets(Fault("no length", happen), "GetObject", times=None)
    for ask in (way.faulty.open, way.faulty.get):
        with pytest.raises(DestinationUnavailable, match="answer has no ContentLength"):
            ask(KEY)


class TwoLengths(Message):
    """An answer through a proxy that repeats its length."""

    def to_bytes(self, *, close: bool = False) -> bytes:
        return re.sub(rb"(?i)(content-length: )(\d+)", rb"\1\2, \2", super().to_bytes(close=close))


@pytest.mark.parametrize("use", ["open", "get", "head", "list"])
def test_an_answer_with_two_lengths_is_asked_for_again(way: Way, use: str) -> None:
    async def happen(exchange: Exchange) -> None:
        answered = await exchange.forward()
        await exchange.respond(TwoLengths(answered.head, answered.body))
        exchange.hang_up()

    put(way.direct, KEY, b"0123456789")
    operation, ask = USES[use]
    way.meets(Fault("two lengths", happen), operation)
    ask(way.faulty)
    assert way.sent(operation) == 2
    way.meets(Fault("two lengths", happen), operation, times=None)
    with pytest.raises(DestinationUnavailable, match=r"(\d+), \1"):
        ask(way.faulty)


@pytest.mark.parametrize("header", ["ETag", "Last-Modified"])
def test_an_answer_that_doesnt_say_which_version_is_refused(way: Way, header: str) -> None:
    put(way.direct, KEY, b"0123456789")
    way.meets(without_header(header), times=None)
    ask = way.faulty.open if header == "ETag" else way.faulty.head
    with pytest.raises(DestinationUnavailable, match=f"no {header.replace('-', '')}"):
        ask(KEY)


def without(header: str) -> Fault:
    """The store doesn't see that header."""

    async def happen(exchange: Exchange) -> None:
        request = exchange.request
        await exchange.respond(
            await exchange.forward(replace(request, head=request.head.without(header)))
        )

    return Fault(f"request without {header}", happen)
