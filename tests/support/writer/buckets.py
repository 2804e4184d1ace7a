"""Buckets of a test server, as the writer's configuration names them and as paths to look into."""

from dataclasses import dataclass

from tests.support.aws import AwsServer


@dataclass(frozen=True)
class BucketPath:
    """A key or a prefix, with as much of Path's ways as reading an archive takes."""

    server: AwsServer
    bucket: str
    key: str = ""

    def __truediv__(self, name: str) -> "BucketPath":
        return BucketPath(self.server, self.bucket, f"{self.key}/{name}".lstrip("/"))

    @property
    def parent(self) -> "BucketPath":
        return BucketPath(self.server, self.bucket, self.key.rpartition("/")[0])

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    def read_bytes(self) -> bytes:
        s3 = self.server.client("s3")
        return s3.get_object(Bucket=self.bucket, Key=self.key)["Body"].read()

    def exists(self) -> bool:
        return self.key in self.names()

    def names(self) -> list[str]:
        """Every key that begins as this one."""
        pages = self.server.client("s3").get_paginator("list_objects_v2")
        found = pages.paginate(Bucket=self.bucket, Prefix=self.key)
        return [entry["Key"] for page in found for entry in page.get("Contents", ())]

    def unfinished(self) -> list[str]:
        """The keys of multipart uploads that are neither completed nor aborted."""
        s3 = self.server.client("s3")
        return [
            upload["Key"]
            for upload in s3.list_multipart_uploads(Bucket=self.bucket).get("Uploads", ())
        ]

    def configured(self, **more: str) -> str:
        """As a destination, for the writer's configuration; ``more`` wins."""
        settings = {
            "type": "s3",
            "bucket": f'"{self.bucket}"',
            "endpoint": f'"{self.server.endpoint}"',
            "addressing": "path",
            **({"prefix": f'"{self.key}"'} if self.key else {}),
            **more,
        }
        return "{ " + ", ".join(f"{name} = {value}" for name, value in settings.items()) + " }"


def new_bucket(server: AwsServer, region: str | None = None) -> BucketPath:
    """A bucket that nobody else uses."""
    return BucketPath(server, server.new_bucket(region))
