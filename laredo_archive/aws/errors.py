"""Errors before any request to AWS: a bad profile, a missing library, no region.

AwsError
├── AwsMissing      boto3 isn't installed
├── ProfileError    a credentials profile that can't be used as it is written
└── RegionUnknown   no region is configured
"""

from laredo_archive.errors import ArchiveError


class AwsError(ArchiveError):
    """The root of this package's errors."""


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
    """Nothing says in which region ``service`` is to be asked."""

    def __init__(self, service: str, profile: str) -> None:
        super().__init__(
            f"no region for {service} as profile {profile}: give region in its configuration"
            " configured or in the profile, or set AWS_REGION"
        )
        self.service = service
        self.profile = profile
