"""The S3 location of objects: bucket, prefix, region, encryption and storage class."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import get_args
from urllib.parse import urlencode, urlsplit

from laredo_archive.aws.clients import Addressing
from laredo_archive.errors import DestinationError
from laredo_archive.storage.destination import is_plain

SCHEMES = ("s3://", "s3a://")
# "Understanding and managing Amazon S3 storage classes": objects in these must be restored,
# for hours, before they can be read.
_FROZEN = ("GLACIER", "DEEP_ARCHIVE")
# "Categorizing your storage using tags", Amazon S3 User Guide.
_MOST_TAGS = 10
_TAG = re.compile(r"(?!aws:)[\w\s+=.:/@-]{1,128}")
_TAG_VALUE = re.compile(r"[\w\s+=.:/@-]{0,256}")
# "Referencing access points", Amazon S3 User Guide.
_ACCESS_POINT = re.compile(
    r"arn:aws[a-z-]*:s3:(?P<region>[a-z0-9-]+):\d{12}:accesspoint[/:][a-z0-9-]{3,50}(?=/|$)"
)


class BadS3Location(DestinationError):
    """A configured location isn't a valid bucket or prefix."""


@dataclass(frozen=True)
class S3Location:
    """A prefix of a bucket, with ``/`` at its end, or empty.

    ``credentials``: a profile's name, None for the ambient one. ``region``, ``endpoint``: the
    service's, unless the profile or the environment sets them. ``storage_class`` is that of
    artifacts; a manifest, overwritten with each commit, has the bucket's usual one. ``tags`` are
    put on every object. ``requester_pays``: our account pays for the requests.

    :raises BadS3Location: if it isn't a valid location.
    """

    #: The bucket's name, or the ARN of an access point, whose region counts without ``region``.
    bucket: str
    prefix: str = ""
    region: str | None = None
    endpoint: str | None = None
    credentials: str | None = None
    addressing: Addressing = "auto"
    server_side_encryption: str | None = None
    kms_key_id: str | None = None
    storage_class: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict, hash=False)
    requester_pays: bool = False

    def __post_init__(self) -> None:
        point = _ACCESS_POINT.fullmatch(self.bucket)
        if point is not None and self.region is None:
            object.__setattr__(self, "region", point["region"])
        prefix = self.prefix.strip("/")
        object.__setattr__(self, "prefix", f"{prefix}/" if prefix else "")
        if self.endpoint is not None:
            object.__setattr__(self, "endpoint", self.endpoint.rstrip("/") or None)
        for wrong in self._contradictions():
            raise BadS3Location(self.uri, wrong)

    @property
    def uri(self) -> str:
        """``s3://bucket/prefix/``, unquoted, as in every tool for S3."""
        return f"s3://{self.bucket}/{self.prefix}"

    @property
    def identity(self) -> str:
        """The URI, and the endpoint if it isn't AWS's: a bucket's name is unique in AWS only."""
        if self.endpoint is None or _is_aws(self.endpoint):
            return self.uri
        address = urlsplit(self.endpoint)
        return f"{self.uri}?endpoint={address.scheme}://{address.netloc.lower()}{address.path}"

    @property
    def tagging(self) -> str:
        """The tags as PutObject takes them: URL query parameters."""
        return urlencode(dict(self.tags))

    def _contradictions(self) -> list[str]:
        wrong = [*self._wrong_bucket(), *self._wrong_endpoint()]
        if self.prefix and not is_plain(self.prefix.removesuffix("/")):
            wrong.append(f"the prefix {self.prefix!r} has an empty part, or one that is . or ..")
        known = get_args(Addressing)
        if self.addressing not in known:
            wrong.append(f"addressing {self.addressing!r} isn't one of {', '.join(known)}")
        if self.kms_key_id is not None and not _is_kms(self.server_side_encryption):
            wrong.append("kms_key_id needs server_side_encryption = aws:kms")
        if self.storage_class in _FROZEN:
            wrong.append(
                f"objects of the storage class {self.storage_class} can't be read before they are"
                " restored; use GLACIER_IR, or a lifecycle rule for retired objects"
            )
        return [*wrong, *self._wrong_tags()]

    def _wrong_bucket(self) -> Iterator[str]:
        if _ACCESS_POINT.fullmatch(self.bucket):
            if self.addressing == "path":
                yield "an access point is named in the host: use addressing virtual, or auto"
        elif self.bucket.startswith("arn:"):
            yield (
                f"{self.bucket!r} isn't the ARN of an access point in one region, as in"
                " arn:aws:s3:eu-central-1:123456789012:accesspoint/NAME; for others name the bucket"
            )
        elif not self.bucket or "/" in self.bucket:
            yield f"{self.bucket!r} isn't a bucket's name"

    def _wrong_endpoint(self) -> Iterator[str]:
        if self.endpoint is None:
            return
        address = urlsplit(self.endpoint)
        host = address.netloc.removeprefix(f"{self.bucket}.")
        if address.scheme not in ("http", "https"):
            yield f"the endpoint {self.endpoint!r} isn't an http:// or https:// URL"
        elif address.path == f"/{self.bucket}" or (
            host != address.netloc and _is_aws(self.endpoint)
        ):
            yield (
                f"the endpoint {self.endpoint} names the bucket, which requests add to it; write"
                f" {address.scheme}://{host}"
            )

    def _wrong_tags(self) -> Iterator[str]:
        if len(self.tags) > _MOST_TAGS:
            yield f"an object has at most {_MOST_TAGS} tags, not {len(self.tags)}"
        for name, value in self.tags.items():
            if not _TAG.fullmatch(name):
                yield f"{name!r} can't be a tag: use letters, digits, blanks and +-=._:/@ only"
            if not _TAG_VALUE.fullmatch(value):
                yield f"{value!r} can't be the value of tag {name}"


def parse(uri: str) -> S3Location:
    """Parse ``s3://bucket/prefix`` (or ``s3a://``); nothing in it is quoted.

    The bucket may be the ARN of an access point.

    :raises BadS3Location: if it isn't such a URI.
    """
    for scheme in SCHEMES:
        if uri.lower().startswith(scheme):
            place = uri[len(scheme) :]
            point = _ACCESS_POINT.match(place)
            # Any other ARN is refused whole, as it was written.
            parts = 2 if place.startswith("arn:") else 1
            bucket = point[0] if point is not None else "/".join(place.split("/")[:parts])
            return S3Location(bucket, place[len(bucket) :])
    raise BadS3Location(uri, f"not an S3 URI; one begins with {' or '.join(SCHEMES)}")


def _is_aws(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))


def _is_kms(encryption: str | None) -> bool:
    return encryption is not None and encryption.startswith("aws:kms")
