"""A table's archive on S3: what a commit costs, what a claim clears, which destination failed."""

from collections import Counter
from collections.abc import Callable

import pytest

from laredo_archive.errors import CommitUnavailable, Fenced
from laredo_archive.storage.s3.destination import S3Destination
from laredo_archive.write.manifest_store import Environment
from laredo_archive.write.table_archive import TableArchive
from laredo_model.position import Position
from tests.support.archive.archiving import ONE, THREE, TWO, begun_base, diffed, opened, rebased
from tests.support.archive.s3_maker import S3Maker
from tests.support.archive.s3_way import LARGE
from tests.support.faults.proxy import FaultProxy

AT_ONCE = Environment(pause=lambda _: None)


@pytest.mark.parametrize("formats", [("jsonl",), ("jsonl", "protobuf")])
@pytest.mark.parametrize("count", [1, 2])
def test_round_trips_of_a_small_diff(s3: S3Maker, count: int, formats: tuple[str, ...]) -> None:
    """One PUT and one HEAD per format and destination, one PUT for each manifest."""
    destinations = [s3() for _ in range(count)]
    with opened(destinations) as archive:
        rebased(archive, 10, ONE, continues=False, formats=formats)
        s3.called.clear()
        diffed(archive, 10, 20, ONE, TWO, formats=formats)
        assert Counter((call.operation, call.status) for call in s3.called) == {
            ("PutObject", 200): count * (len(formats) + 1),
            ("HeadObject", 200): count * len(formats),
        }


def test_round_trips_of_saying_that_nothing_changed(s3: S3Maker) -> None:
    with opened([s3()]) as archive:
        rebased(archive, 10, ONE, continues=False)
        s3.called.clear()
        archive.see(Position(30))
        assert [call.operation for call in s3.called] == ["PutObject"]


def unfinished_base(archive: TableArchive):  # type: ignore[no-untyped-def]
    base = begun_base(archive)
    line = b'{"id":1,"v":"%s"}' % LARGE
    base.write([b"1"], [line])
    return base


def test_a_claim_drops_what_writers_before_left(s3: S3Maker) -> None:
    destination = s3()
    elsewhere = destination.upload("other.table/epoch=1/snapshot")
    elsewhere.write(LARGE)
    first = opened([destination], "w1")
    base = unfinished_base(first)
    bucket, _, prefix = destination.uri.removeprefix("s3://").partition("/")

    def begun() -> list[str]:
        listed = s3.server.client("s3").list_multipart_uploads(Bucket=bucket, Prefix=prefix)
        return sorted(found["Key"].removeprefix(prefix) for found in listed.get("Uploads", ()))

    assert begun() == ["other.table/epoch=1/snapshot", "public.t/epoch=1/snapshot-0_A.jsonl"]
    with opened([destination], "w2") as second:
        assert begun() == ["other.table/epoch=1/snapshot"], "another table's is another writer's"
        with pytest.raises(CommitUnavailable):
            base.finish(None)
        with pytest.raises(Fenced):
            first.settle()
            rebased(first, 10, ONE, continues=False)
        rebased(second, 10, ONE, continues=False)
    elsewhere.abort()


@pytest.fixture
def alike(s3: S3Maker, makers: Callable[[str], S3Maker], proxy: FaultProxy) -> list[S3Destination]:
    """Two stores, and in each a bucket of the same name; one behind the proxy."""
    one, other = s3, makers("moto")
    bucket = one.server.new_bucket()
    other.server.client("s3").create_bucket(Bucket=bucket)
    return [
        one(bucket=bucket, prefix="p", endpoint=proxy.endpoint),
        other(bucket=bucket, prefix="p"),
    ]


def test_buckets_of_the_same_name_are_two_places(
    alike: list[S3Destination], proxy: FaultProxy
) -> None:
    faulty, other = alike
    assert faulty.uri == other.uri
    assert faulty.location != other.location
    with opened(alike, environment=AT_ONCE) as archive:
        rebased(archive, 10, ONE, continues=False)
        with proxy.away(), pytest.raises(CommitUnavailable) as caught:
            diffed(archive, 10, 20, ONE, TWO)
        assert caught.value.location == faulty.location
        assert archive.counts.destination_errors == {faulty.location: 1}
        archive.settle()
        diffed(archive, 20, 30, TWO, THREE)
    for place in alike:
        assert len(list(place.list("public.t/"))) == 4


def test_an_upload_that_fails_names_its_place(
    alike: list[S3Destination], proxy: FaultProxy
) -> None:
    with opened(alike, environment=AT_ONCE) as archive:
        with proxy.away(), pytest.raises(CommitUnavailable) as caught:
            unfinished_base(archive).finish(None)
        assert caught.value.location == alike[0].location
