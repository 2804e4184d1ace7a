"""Credentials profiles: the identities with which a program calls AWS, and errors before a call.

``ambient`` is the identity of the environment: variables, a container's or an
instance's role, or a named profile of the AWS configuration files.
``assume_role`` is a role that another profile, its ``base``, assumes.
``anonymous`` is nobody: requests aren't signed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal

from laredo_archive.errors import ArchiveError


class AwsError(ArchiveError):
    """The root of errors before any request to AWS."""


class AwsMissing(AwsError):
    """boto3 isn't installed."""

    def __init__(self) -> None:
        super().__init__(
            "S3, SNS, SQS and Kinesis need boto3, which isn't installed here:"
            " pip install 'laredo-snapshotter[aws]'"
        )


class ProfileError(AwsError):
    """The credentials profile ``profile`` can't be used as it is written."""

    def __init__(self, profile: str, reason: str) -> None:
        super().__init__(f"credentials.{profile}: {reason}")
        self.profile = profile
        self.reason = reason


class RegionUnknown(AwsError):
    """No region is configured for requests to ``service``."""

    def __init__(self, service: str, profile: str) -> None:
        super().__init__(
            f"no region for {service} as profile {profile}: set region where the bucket, topic,"
            " queue or stream is configured, or in the profile, or set AWS_REGION"
        )
        self.service = service
        self.profile = profile


_ROLE_ARN = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+", re.ASCII)
# AWS STS API reference, AssumeRole: RoleSessionName and ExternalId.
_SESSION_NAME = re.compile(r"[\w+=,.@-]{2,64}", re.ASCII)
_EXTERNAL_ID = re.compile(r"[\w+=,.@:/-]{2,1224}", re.ASCII)


@dataclass(frozen=True)
class Profile:
    """One named profile.

    ``base``: the profile that assumes the role; ambient if None. ``region``: that of STS,
    and of clients of this profile that have none. ``endpoint``: another STS than AWS's own;
    a role without one uses its base's. ``aws_profile``: a named profile of the AWS
    configuration files (ambient only).
    """

    name: str
    type: Literal["ambient", "assume_role", "anonymous"]
    role_arn: str | None = None
    external_id: str | None = field(default=None, repr=False)
    session_name: str | None = None
    base: str | None = None
    region: str | None = None
    endpoint: str | None = None
    aws_profile: str | None = None


AMBIENT = Profile("ambient", "ambient")
ANONYMOUS = Profile("anonymous", "anonymous")


def check(profiles: Mapping[str, Profile]) -> None:
    """Check that each profile can be used, and that its chain of bases ends.

    :raises ProfileError: naming the first that can't be used.
    """
    for profile in profiles.values():
        if profile.type == "ambient":
            _check_ambient(profile)
        elif profile.type == "assume_role":
            _check_role(profile)
    for profile in profiles.values():
        chain_of(profile.name, profiles)


def chain_of(name: str, profiles: Mapping[str, Profile]) -> list[Profile]:
    """The profile ``name``, its base, and so on, down to the ambient one.

    :raises ProfileError: if one doesn't exist, or the chain leads back to itself.
    """
    chain = [find(name, profiles)]
    while chain[-1].type == "assume_role":
        following = chain[-1].base or AMBIENT.name
        if any(profile.name == following for profile in chain):
            way = " -> ".join([*(profile.name for profile in chain), following])
            raise ProfileError(
                name, f"base leads back to itself ({way}); give the last one another base"
            )
        chain.append(find(following, profiles, asked_by=chain[-1].name))
    return chain


def find(name: str, profiles: Mapping[str, Profile], asked_by: str | None = None) -> Profile:
    """The profile ``name``; ``ambient`` always exists.

    :raises ProfileError: naming the nearest one, if there is none of that name.
    """
    if name in profiles:
        return profiles[name]
    if name == AMBIENT.name:
        return AMBIENT
    near = get_close_matches(name, [*profiles, AMBIENT.name], 1)
    advice = f"; did you mean {near[0]}?" if near else f"; known: {_names(profiles)}"
    if asked_by is None:
        raise ProfileError(name, f"there is no such profile{advice}")
    raise ProfileError(asked_by, f"base names {name}, which is no profile{advice}")


def _names(profiles: Mapping[str, Profile]) -> str:
    return ", ".join(sorted({*profiles, AMBIENT.name}))


def _check_ambient(profile: Profile) -> None:
    for name in ("role_arn", "external_id", "session_name", "base"):
        if getattr(profile, name) is not None:
            raise ProfileError(
                profile.name,
                f"{name} is for type = assume_role only, and this profile is ambient",
            )


def _check_role(profile: Profile) -> None:
    if profile.name == AMBIENT.name:
        raise ProfileError(
            profile.name,
            "ambient is the name of the environment's identity; give the role another one",
        )
    if profile.aws_profile is not None:
        raise ProfileError(
            profile.name,
            "profile names a profile of the AWS configuration files, for type = ambient only; give"
            " the role such an ambient profile as its base",
        )
    if profile.role_arn is None:
        raise ProfileError(profile.name, "type = assume_role needs role_arn")
    if not _ROLE_ARN.fullmatch(profile.role_arn):
        raise ProfileError(
            profile.name,
            f"role_arn {profile.role_arn!r} is no role's ARN, as in"
            " arn:aws:iam::123456789012:role/NAME",
        )
    _check_text(profile, "session_name", _SESSION_NAME, "2 to 64 letters, digits and _+=,.@-")
    _check_text(profile, "external_id", _EXTERNAL_ID, "2 to 1224 letters, digits and _+=,.@:/-")


def _check_text(profile: Profile, name: str, rule: re.Pattern[str], meaning: str) -> None:
    value = getattr(profile, name)
    if value is not None and not rule.fullmatch(value):
        raise ProfileError(profile.name, f"{name} {value!r} isn't {meaning}")
