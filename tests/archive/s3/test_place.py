"""Places: how they are written, what they are, and which are the same."""

from typing import Any

import pytest

from laredo_archive.aws.clients import AwsClients
from laredo_archive.storage.s3.bucket import BadS3Location, S3Location, parse

POINT = "arn:aws:s3:eu-central-1:123456789012:accesspoint/tables"


@pytest.mark.parametrize(
    ("uri", "bucket", "prefix"),
    [
        ("s3://b", "b", ""),
        ("s3://b/", "b", ""),
        ("s3a://b/users", "b", "users/"),
        ("S3://b/a b/x=1/", "b", "a b/x=1/"),
        ("s3://b/é?x#y%20+/z", "b", "é?x#y%20+/z/"),
        ("s3://b//x//", "b", "x/"),
        (f"s3://{POINT}", POINT, ""),
        (f"s3a://{POINT}/users/a", POINT, "users/a/"),
    ],
)
def test_a_uri_is_taken_as_it_is(uri: str, bucket: str, prefix: str) -> None:
    place = parse(uri)
    assert (place.bucket, place.prefix) == (bucket, prefix)
    assert place.uri == f"s3://{bucket}/{prefix}"
    assert parse(place.uri) == place


def test_an_access_point_is_asked_in_its_region() -> None:
    place = parse(f"s3://{POINT}/users/")
    assert place.region == "eu-central-1"
    client = AwsClients().client("s3", region=place.region)
    asked = client.generate_presigned_url("get_object", {"Bucket": place.bucket, "Key": "a"})
    host = "tables-123456789012.s3-accesspoint.eu-central-1.amazonaws.com"
    assert asked.startswith(f"https://{host}/a?")


def test_another_arn_is_refused_as_it_was_written() -> None:
    many = "arn:aws:s3::123456789012:accesspoint/many.mrap"
    with pytest.raises(BadS3Location, match=rf"'{many}' isn't the ARN"):
        parse(f"s3://{many}/users/")


@pytest.mark.parametrize("prefix", ["users", "/users", "users/", "/users//"])
def test_a_prefix_ends_with_a_slash(prefix: str) -> None:
    assert S3Location("b", prefix).uri == "s3://b/users/"


@pytest.mark.parametrize(
    ("endpoint", "identity"),
    [
        (None, "s3://b/x/"),
        ("https://s3.eu-west-1.amazonaws.com", "s3://b/x/"),
        ("https://s3.cn-north-1.amazonaws.com.cn/", "s3://b/x/"),
        ("http://Minio.local:9000/", "s3://b/x/?endpoint=http://minio.local:9000"),
        ("https://store/s3", "s3://b/x/?endpoint=https://store/s3"),
        (
            "https://s3.amazonaws.com.evil.example",
            "s3://b/x/?endpoint=https://s3.amazonaws.com.evil.example",
        ),
    ],
)
def test_a_bucket_is_one_per_service(endpoint: str | None, identity: str) -> None:
    place = S3Location("b", "x", endpoint=endpoint)
    assert place.identity == identity
    assert place.uri == "s3://b/x/"


def test_the_same_place_by_other_means() -> None:
    one = S3Location("b", "x", region="eu-west-1", credentials="a", storage_class="STANDARD_IA")
    assert one.identity == S3Location("b", "/x/", addressing="path").identity


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"bucket": ""}, "isn't a bucket's name"),
        ({"bucket": "a/b"}, "isn't a bucket's name"),
        ({"bucket": POINT, "addressing": "path"}, "addressing virtual, or auto"),
        ({"bucket": "arn:aws:s3::123456789012:accesspoint/x.mrap"}, "point in one region"),
        ({"bucket": f"{POINT}/b"}, "isn't the ARN of an access point"),
        ({"endpoint": "http://minio:9000/b"}, "write http://minio:9000$"),
        ({"endpoint": "https://b.s3.amazonaws.com"}, "write https://s3.amazonaws.com$"),
        ({"prefix": "a//b"}, "has an empty part, or one that is"),
        ({"prefix": "a/../b"}, r"or one that is \. or \.\."),
        ({"endpoint": "localhost:9000"}, "http:// or https://"),
        ({"addressing": "dns"}, "auto, path, virtual"),
        ({"kms_key_id": "k"}, "server_side_encryption = aws:kms"),
        ({"kms_key_id": "k", "server_side_encryption": "AES256"}, "aws:kms"),
        ({"storage_class": "DEEP_ARCHIVE"}, "can't be read before .* GLACIER_IR"),
        ({"tags": {f"t{number}": "x" for number in range(11)}}, "at most 10 tags, not 11"),
        ({"tags": {"aws:x": "y"}}, "'aws:x' can't be a tag"),
        ({"tags": {"": "y"}}, "'' can't be a tag"),
        ({"tags": {"a&b": "y"}}, "'a&b' can't be a tag"),
        ({"tags": {"a": "y" * 257}}, "can't be the value of tag a"),
    ],
)
def test_what_cant_be_a_place_says_why(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadS3Location, match=complaint):
        S3Location(**{"bucket": "b", **values})


@pytest.mark.parametrize("uri", ["", "b/x", "file:///x", "s3:/b", "gs://b/x"])
def test_what_is_no_uri_of_s3(uri: str) -> None:
    with pytest.raises(BadS3Location, match="s3://"):
        parse(uri)
