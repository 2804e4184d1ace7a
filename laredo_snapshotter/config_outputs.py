"""Source, archive, destinations, events and credentials in the configuration."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from laredo_archive import codec
from laredo_archive.aws import profile as profile_
from laredo_archive.aws.profile import Profile, ProfileError
from laredo_archive.storage import local
from laredo_archive.storage.s3.bucket import BadS3Location, S3Location
from laredo_fanout.client.errors import BadEndpoint
from laredo_fanout.client.stream.endpoint import Endpoint as ServerEndpoint
from laredo_fanout.client.stream.endpoint import Tls, endpoint_of
from laredo_service.command_line import MOST_HOURS
from laredo_service.settings import Duration, SchemaName, Secret, Section, WrongAt
from laredo_service.settings import Path as ConfigPath
from laredo_service.settings.values import with_secret
from laredo_service.table_pattern import STAR, TablePattern
from laredo_snapshotter.errors import ConfigRefused


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
        """The absolute path of the directory."""
        return self.path.absolute()

    @cached_property
    def uri(self) -> str:
        """Canonical, with ``/`` at the end."""
        return local.LocalDestination(self.path).uri

    @model_validator(mode="after")
    def _resolve(self) -> "LocalDestinationBlock":
        # As the configuration is loaded, in a thread: the directory's file system may hang later.
        self.uri  # noqa: B018
        return self

    @property
    def location(self) -> str:
        """Identity of the directory, however its path is written."""
        return self.uri

    def below(self, key_prefix: str) -> tuple[str, str]:
        """The store, and where in it an archive is."""
        return "the file system", f"{self.uri}{key_prefix}"


class S3DestinationBlock(Section):
    """A bucket or a prefix in one, of AWS or of any store that speaks S3."""

    type: Literal["s3"]
    """A bucket."""
    bucket: str
    """Its name."""
    prefix: str = ""
    """Prefix of all objects; the whole bucket by default."""
    region: Region | None = None
    """The bucket's region; by default the profile's, then ``AWS_REGION``."""
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


_OF_PLACE = [
    field.name for field in fields(S3Location) if field.name in S3DestinationBlock.model_fields
]

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
    """A named profile: the identity for requests to destinations and sinks."""

    type: Literal["ambient", "assume_role"]
    """``ambient``: the identity that the AWS SDK finds (environment, ~/.aws, the machine's role);
    ``assume_role``: assumes ``role_arn``."""
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
    """Refuse a profile that can't be used, and a name that no profile has.

    :raises WrongAt: with the path from the block that holds all three.
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


# Configuration of an archive: formats, compression, retention, compaction.

DAY_S = 86400.0
_MOST_DAYS = MOST_HOURS // 24


def _ago(seconds: float) -> float:
    if seconds > _MOST_DAYS * DAY_S:
        raise ValueError(f"the duration is too long; {_MOST_DAYS}d is the longest")
    return seconds


Age = Annotated[Duration, Field(gt=0), AfterValidator(_ago)]
"""A duration that is subtracted from a date."""
Count = Annotated[int, Field(gt=0)]
SnapshotFormat = Literal["jsonl", "protobuf", "parquet"]
DiffFormat = Literal["jsonl", "protobuf"]


class FormatsBlock(Section):
    """The formats that each artifact is written in, all of them at once."""

    snapshot: Annotated[tuple[SnapshotFormat, ...], Field(min_length=1)] = ("jsonl",)
    """Formats of bases: ``jsonl``, ``protobuf``, ``parquet``."""
    diff: Annotated[tuple[DiffFormat, ...], Field(min_length=1)] = ("jsonl",)
    """Formats of diffs: ``jsonl``, ``protobuf``."""
    compression: Literal["none", "zstd"] = "none"
    """``zstd``: jsonl and protobuf are compressed, as the formats ``jsonl.zst`` and
    ``protobuf.zst``. Older readers, and the original's, can't read these; parquet compresses
    itself. Existing artifacts stay unchanged."""

    @property
    def of_bases(self) -> tuple[str, ...]:
        """The format ids that bases get."""
        return self._compressed(self.snapshot)

    @property
    def of_diffs(self) -> tuple[str, ...]:
        """The format ids that diffs get."""
        return self._compressed(self.diff)

    def _compressed(self, formats: tuple[str, ...]) -> tuple[str, ...]:
        if self.compression == "none":
            return formats
        return tuple(codec.compressed_format(format_id) for format_id in formats)

    @model_validator(mode="after")
    def _zstandard(self) -> "FormatsBlock":
        for format_id in self.of_bases + self.of_diffs:
            try:
                codec.check_format(format_id)
            except codec.ZstandardMissing as missing:
                raise ValueError(f"compression = zstd: {missing}") from missing
        return self

    @field_validator("snapshot", "diff")
    @classmethod
    def _once(cls, formats: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(formats)) != len(formats):
            raise ValueError("a format is named twice")
        for format_id in formats:
            try:
                codec.check_format(format_id)
            except codec.CodecError as missing:
                raise ValueError(str(missing)) from missing
        return formats


class RetentionBlock(Section):
    """Limits for epochs in the manifest, and for the deletion of retired objects."""

    keep_epochs: Count | None = None
    """Number of epochs in the manifest; older ones leave it. All stay by default."""
    collect_interval: Annotated[Duration, Field(ge=0)] = 3600.0
    """Interval at which objects that left the manifest are retired and deleted; 0: ``laredo-archive
    gc`` does it."""
    cut_off: Age = DAY_S
    """Age from which an object that no manifest names is garbage."""
    grace: Age = DAY_S
    """Time after which retired objects are deleted; must be longer than the longest read."""


class CompactionBlock(Section):
    """Levels at which diffs are merged into larger ones, so that any reader needs only a few."""

    levels: tuple[Annotated[Duration, Field(gt=0)], ...] = ()
    """Lengths of time, ascending: the diffs of each period of such a length are merged into one.
    None by default: diffs stay as they are written. Make each a few times the one before it:
    ``[20s, 1m, 5m, 15m, 1h, 4h, 1d, 7d, 28d]``."""
    keep_parts: Age | None = None
    """Time after a merge for which the boundaries inside the merged diff can be read, and its parts
    are kept; for good by default."""

    @field_validator("levels")
    @classmethod
    def _ascend(cls, levels: tuple[float, ...]) -> tuple[float, ...]:
        if any(lower >= higher for lower, higher in pairwise(levels)):
            raise ValueError("each level has to be longer than the one before")
        return levels


# The ``source`` block: the table, or the pattern of tables, and the server that streams it.


class TlsBlock(Section):
    """TLS towards the server; all PEM files."""

    ca: Path | None = None
    """The CA that signed the server's certificate."""
    cert: Path | None = None
    """The client's certificate."""
    key: Path | None = None
    """Its private key."""
    server_name: str | None = None
    """The name in the server's certificate, if it isn't the one in ``source.server``."""


def _as_list(servers: object) -> object:
    return (servers,) if isinstance(servers, str) else servers


ServerAddresses = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


class SourceBlock(Section):
    """The table, and the laredo-fanout server that streams it."""

    server: ServerAddresses | None = None
    """``host:port`` of the server's gRPC side, or a list of servers with the same data, such as a
    primary and its relays: if one doesn't serve, the stream resumes from another. Required."""
    schema_name: Annotated[SchemaName, Field(alias="schema")] = "public"
    """The table's schema. With a ``*``, as in ``table``, a pattern."""
    table: str | None = None
    """The table's name; required. With a ``*``, which matches any characters, the block is a
    pattern: all matching tables of the server are written, also those that are added later."""
    exclude: tuple[str, ...] = ()
    """Of a pattern: tables that it doesn't match, as ``table`` or ``schema.table``, which may
    have a ``*``."""
    max_tables: Annotated[int, Field(ge=1)] = 500
    """Of a pattern: the most tables to write; the log names the others."""
    client_id: str | None = None
    """Name of this writer at the server; by default ``laredo-snapshotter:<schema>.<table>``."""
    local_snapshot_path: Path | None = None
    """Directory for a transaction larger than memory; by default $TMPDIR."""
    tls: TlsBlock | None = None
    token: Secret | None = None
    """The token that the server asks for."""
    token_file: Path | None = None
    """A file with the token alone, in place of ``token``."""

    @model_validator(mode="before")
    @classmethod
    def _token_from_file(cls, data: Any) -> Any:
        return with_secret(data, "token")

    @property
    def is_pattern(self) -> bool:
        """True if it is a pattern, for all of the server's tables whose names match."""
        return STAR in self.schema_name or STAR in (self.table or "")

    @property
    def pattern(self) -> TablePattern:
        """The pattern, if it is one."""
        return TablePattern(self.schema_name, self.table or "", self.exclude)

    def endpoint(self, path: ConfigPath) -> ServerEndpoint:
        """The server; ``path`` is the configuration path of the table.

        :raises ConfigRefused: if an address isn't one, or of TLS's cert and key one is missing.
        """
        tls = self.tls
        if tls is not None and (tls.cert is None) != (tls.key is None):
            reason = "cert and key belong together; give both or neither"
            raise ConfigRefused((*path, "source", "tls"), reason)
        try:
            return endpoint_of(
                self.server or (),
                None if tls is None else Tls(tls.ca, tls.cert, tls.key, tls.server_name),
                None if self.token is None else self.token.get_secret_value(),
            )
        except BadEndpoint as wrong:
            raise ConfigRefused((*path, "source", "server"), str(wrong)) from wrong
