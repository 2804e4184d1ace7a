"""An archive that is put into a bucket, and how it is reached."""

from pathlib import Path

from tests.support.aws import REGION, AwsServer


def put(server: AwsServer, archive: Path, bucket: str | None = None) -> str:
    """The archive in a bucket of its own, below a prefix; its bucket."""
    bucket = bucket or server.new_bucket()
    for file in archive.rglob("*"):
        if file.is_file():
            key = f"lake/users/{file.relative_to(archive).as_posix()}"
            server.client("s3").put_object(Bucket=bucket, Key=key, Body=file.read_bytes())
    return bucket


def reached(server: AwsServer) -> dict[str, str]:
    return {"endpoint": server.endpoint, "region": REGION, "addressing": "path"}
