"""Configuration of destinations, sinks and credentials."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from laredo_archive.aws import profile as profile_
from laredo_archive.aws.profile import Profile, ProfileError
from laredo_archive.storage import local
from laredo_archive.storage.s3.bucket import BadS3Location, S3Location
from laredo_service.settings import Secret, Section, WrongAt


def _endpoint(url: str) -> str:
    if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", url):
        raise ValueError(f'"{url}" is not an endpoint; write https://host or http://host:port')
    return url.rstrip("/")


def _region(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9-]+", name):
        raise ValueError(f'"{name}" is not a region; write it as AWS does, such as eu-central-1')
    return name


def _removed(value: object) -> None:
    raise ValueError(
        "this key was removed; delete it. A store without conditional writes (If-Match and"
        " If-None-Match) is refused: on one, two writers could destroy the archive"
    )


Endpoint = Annotated[str, AfterValidator(_endpoint)]
Region = Annotated[str, AfterValidator(_region)]


class LocalDestinationBlock(Section):
    """A directory."""

    type: Literal["local"]
    """A directory."""
    path: Path
    """The directory below which archives are written."""

    @property
    def directory(self) -> Path:
        """Absolute."""
        return self.path.absolute()

    @property
    def uri(self) -> str:
        """Canonical, with ``/`` at the end."""
        return local.LocalDestination(self.path).uri

    @property
    def location(self) -> str:
        """Identity of the directory, however its path is written."""
        return self.uri

    def below(self, key_prefix: str) -> tuple[str, str]:
        """The store, and where in it an archive is."""
        return "the file system", f"{self.path.resolve()}/{key_prefix}"


class S3DestinationBlock(Section):
    """A bucket, or what is below a prefix of it; AWS's or any store that speaks S3."""

    type: Literal["s3"]
    """A bucket."""
    bucket: str
    """Its name."""
    prefix: str = ""
    """Prefix of all objects; the whole bucket by default."""
    region: Region | None = None
    """The bucket's own; by default the profile's, then ``AWS_REGION``."""
    endpoint: Endpoint | None = None
    """Another store that speaks S3, such as ``http://minio:9000``; AWS by default."""
    credentials: str | None = None
    """Profile for requests; ``ambient`` by default."""
    addressing: Literal["auto", "path", "virtual"] = "auto"
    """``path``, or ``virtual``: the bucket in the host's name."""
    server_side_encryption: Literal["AES256", "aws:kms"] | None = None
    """``AES256`` or ``aws:kms``; by default the bucket's."""
    kms_key_id: str | None = None
    """The KMS key, if it isn't the account's own."""
    storage_class: str | None = None
    """Storage class of artifacts; the bucket's by default. A class whose objects must be restored
    before a read is refused."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Tags of every object, at most 10."""
    # Removed; for one version it is an error of its own, not an unknown key.
    unsafe_single_writer: Annotated[None, BeforeValidator(_removed)] = None

    @model_validator(mode="after")
    def _is_possible(self) -> "S3DestinationBlock":
        try:
            self.s3_location  # noqa: B018  # its maker checks it
        except BadS3Location as wrong:
            raise ValueError(str(wrong)) from wrong
        return self

    @property
    def s3_location(self) -> S3Location:
        """This destination as the archive's S3 location.

        :raises BadS3Location: if it can't be one.
        """
        return S3Location(**{name: getattr(self, name) for name in _OF_PLACE})

    @property
    def uri(self) -> str:
        """With ``/`` at the end; two stores may have buckets of the same name."""
        return self.s3_location.uri

    @property
    def location(self) -> str:
        """Identity of the bucket and prefix, however they are written."""
        return self.s3_location.identity

    def below(self, key_prefix: str) -> tuple[str, str]:
        """The store, and where in it an archive is."""
        store = self.location.removeprefix(self.uri)
        return store.removeprefix("?endpoint=") or "S3", f"{self.uri}{key_prefix}"


_OF_PLACE = [field.name for field in fields(S3Location)]

DestinationConfig = LocalDestinationBlock | S3DestinationBlock


class SinkBlock(Section):
    """Settings that all sinks share; the region is that in the sink's name by default."""

    region: Region | None = None
    """By default that of the ARN or URL, then the profile's."""
    endpoint: Endpoint | None = None
    """Endpoint of another service than AWS's."""
    credentials: str | None = None
    """Profile for requests; ``ambient`` by default."""


class SnsSink(SinkBlock):
    """An SNS topic, standard or FIFO."""

    type: Literal["sns"]
    """An SNS topic."""
    topic_arn: Annotated[str, Field(pattern=r"^arn:[\w-]+:sns:[\w-]+:\d{12}:[\w.-]+$")]
    """Its ARN."""

    @property
    def name(self) -> str:
        """The key in the manifest's ``notified``."""
        return self.topic_arn


class SqsSink(SinkBlock):
    """An SQS queue, standard or FIFO."""

    type: Literal["sqs"]
    """An SQS queue."""
    queue_url: Annotated[str, Field(pattern=r"^https?://[^/\s]+/\S+$")]
    """Its URL."""

    @property
    def name(self) -> str:
        """The key in the manifest's ``notified``."""
        return self.queue_url


class KinesisSink(SinkBlock):
    """A Kinesis stream, by name or ARN."""

    type: Literal["kinesis"]
    """A Kinesis stream."""
    stream: Annotated[
        str, Field(pattern=r"^(arn:[\w-]+:kinesis:[\w-]+:\d{12}:stream/)?[\w.-]{1,128}$")
    ]
    """Its name or ARN."""

    @property
    def name(self) -> str:
        """The key in the manifest's ``notified``."""
        return self.stream


SinkConfig = SnsSink | SqsSink | KinesisSink


class CredentialsBlock(Section):
    """A named profile: who destinations and sinks are asked as.

    ``ambient`` is what the AWS SDK finds by itself (environment, ~/.aws, the machine's
    role), ``profile`` a named one of ~/.aws. ``assume_role`` takes on ``role_arn``, as
    the profile ``base`` (ambient if there is none).
    """

    type: Literal["ambient", "assume_role"]
    """``ambient``: the identity that the AWS SDK finds; ``assume_role``: assumes ``role_arn``.
    """
    role_arn: str | None = None
    """The role to assume."""
    external_id: Secret | None = None
    """The external id that its trust policy asks for."""
    session_name: str | None = None
    """The session's name in AWS's logs."""
    base: str | None = None
    """The profile that assumes the role; ``ambient`` by default."""
    region: Region | None = None
    """Region of STS and of this profile's requests."""
    endpoint: Endpoint | None = None
    """Endpoint of another STS than AWS's own."""
    profile: str | None = None
    """A named profile of ~/.aws."""


def profiles_of(credentials: Mapping[str, CredentialsBlock]) -> dict[str, Profile]:
    """The configured credentials as profiles of the AWS clients."""
    return {
        name: Profile(
            name,
            block.type,
            role_arn=block.role_arn,
            external_id=None if block.external_id is None else block.external_id.get_secret_value(),
            session_name=block.session_name,
            base=block.base,
            region=block.region,
            endpoint=block.endpoint,
            aws_profile=block.profile,
        )
        for name, block in credentials.items()
    }


def check_names(
    destinations: Sequence[DestinationConfig],
    events: Sequence[SinkConfig],
    credentials: Mapping[str, CredentialsBlock],
) -> None:
    """Every profile can be used, and every one that is named is there.

    :raises WrongAt: if not, with the path from the block that holds all three.
    """
    profiles = profiles_of(credentials)
    try:
        profile_.check(profiles)
    except ProfileError as wrong:
        raise WrongAt(("credentials", wrong.profile), wrong.reason) from wrong
    for number, destination in enumerate(destinations):
        if isinstance(destination, S3DestinationBlock):
            _check_known(destination, profiles, ("destinations", number))
    for number, sink in enumerate(events):
        _check_known(sink, profiles, ("events", number))


def _check_known(
    block: S3DestinationBlock | SinkBlock, profiles: Mapping[str, Profile], path: tuple[str, int]
) -> None:
    if block.credentials is None:
        return
    try:
        profile_.find(block.credentials, profiles)
    except ProfileError as wrong:
        problem = f'"{block.credentials}": {wrong.reason}'
        raise WrongAt((*path, "credentials"), problem) from wrong
