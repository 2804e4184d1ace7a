"""Buckets of others: public ones are read unsigned, and requester pays where it is asked to."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from laredo_archive import ArchiveError, open_archive
from laredo_archive.aws.profile import AwsError, ProfileError
from laredo_archive.cli import main
from tests.support.archive.answering import Answer, Answering, answering

NOT_THERE = Answer(404, "<Error><Code>NoSuchKey</Code><Message>none</Message></Error>")


def asked(server: Answering) -> dict[str, str]:
    """Headers of the first request, in lower case."""
    return {name.lower(): value for name, value in server.asked[0].headers.items()}


def test_a_public_bucket_is_read_without_a_signature() -> None:
    with answering(NOT_THERE) as server, pytest.raises(ArchiveError):
        open_archive("s3://bucket/users/", endpoint=server.endpoint, anonymous=True)
    assert "authorization" not in asked(server)


def test_the_reader_pays_where_it_says_so() -> None:
    options = ["--endpoint-url", "", "--requester-pays"]
    with answering(NOT_THERE) as server:
        options[1] = server.endpoint
        CliRunner().invoke(main, ["ls", "s3://bucket/users/", *options])
    assert asked(server)["x-amz-request-payer"] == "requester"
    assert "authorization" in asked(server)


def test_an_unsigned_request_has_no_profile() -> None:
    with pytest.raises(ProfileError, match=r"credentials\.anonymous: unsigned requests"):
        open_archive("s3://bucket/users/", anonymous=True, profile="team")


def test_authorities_that_arent_there_are_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "authorities.pem"))
    with pytest.raises(AwsError, match=r"authorities.pem doesn't exist, and AWS_CA_BUNDLE"):
        open_archive("s3://bucket/users/", region="eu-central-1")
