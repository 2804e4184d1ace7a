"""Access to the S3 locations of a command line: credentials, region, endpoint, encryption."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from laredo_archive.aws.clients import Addressing, AwsClients
from laredo_archive.aws.profile import AMBIENT, ANONYMOUS, Profile, ProfileError
from laredo_archive.storage.s3.bucket import S3Location

if TYPE_CHECKING:
    from laredo_archive.storage.s3.destination import S3Destination

Encryption = Literal["AES256", "aws:kms"]


@dataclass(frozen=True)
class S3Access:
    """Credentials, region and options for S3.

    ``credentials`` names a profile of the clients. ``requester_pays``: the credentials' account
    pays for the requests. ``server_side_encryption`` and the fields after it are for written
    objects.
    """

    clients: AwsClients = field(default_factory=AwsClients)
    credentials: str | None = None
    region: str | None = None
    endpoint: str | None = None
    addressing: Addressing = "auto"
    requester_pays: bool = False
    server_side_encryption: Encryption | None = None
    kms_key_id: str | None = None
    storage_class: str | None = None

    def destination(self, bucket: str, parts: Sequence[str] = ()) -> "S3Destination":
        """The objects below ``parts`` in ``bucket``.

        :raises BadS3Location: if it isn't a valid location.
        """
        from laredo_archive.storage.s3.destination import S3Destination

        location = S3Location(
            bucket,
            "".join(f"{part}/" for part in parts),
            region=self.region,
            endpoint=self.endpoint,
            credentials=self.credentials,
            addressing=self.addressing,
            requester_pays=self.requester_pays,
            server_side_encryption=self.server_side_encryption,
            kms_key_id=self.kms_key_id,
            storage_class=self.storage_class,
        )
        return S3Destination(location, self.clients)


def profiles(
    aws_profile: str | None,
    role_arn: str | None,
    external_id: str | None,
    region: str | None,
    *,
    anonymous: bool = False,
) -> tuple[dict[str, Profile], str | None]:
    """The profiles that a command line's options make, and the name of the one to use.

    :raises ProfileError: if they can't be used.
    """
    made: dict[str, Profile] = {}
    name = None
    if anonymous:
        if aws_profile is not None or role_arn is not None:
            raise ProfileError(
                ANONYMOUS.name, "unsigned requests have no profile and no role; leave them out"
            )
        return {ANONYMOUS.name: ANONYMOUS}, ANONYMOUS.name
    if aws_profile is not None:
        name = aws_profile
        made[name] = Profile(name, "ambient", aws_profile=aws_profile, region=region)
    if role_arn is not None:
        base = name or AMBIENT.name
        name = f"role/{role_arn.partition(':role/')[2]}"
        made[name] = Profile(
            name,
            "assume_role",
            role_arn=role_arn,
            external_id=external_id,
            base=base,
            region=region,
        )
    return made, name
