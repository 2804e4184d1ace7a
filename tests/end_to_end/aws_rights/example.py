"""The example's configuration, with every service on a server of this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from laredo_archive.aws.clients import AwsClients
from laredo_archive.aws.profile import Profile
from laredo_archive.storage.s3.bucket import S3Location
from laredo_archive.storage.s3.destination import S3Destination
from laredo_snapshotter import config, config_outputs
from laredo_snapshotter.config_outputs import SinkConfig
from tests.end_to_end.aws_rights.policy import EXAMPLES
from tests.support.aws import AwsServer


@dataclass
class Example:
    """Settings of examples/aws/snapshotter.conf, except for the endpoints."""

    place: S3Location
    sinks: list[SinkConfig]
    profiles: dict[str, Profile]

    @property
    def kms_key(self) -> str:
        assert self.place.kms_key_id is not None
        return self.place.kms_key_id

    def destination(self, clients: AwsClients) -> S3Destination:
        return S3Destination(self.place, clients)


@contextmanager
def example_on(server: AwsServer) -> Iterator[Example]:
    """The example, with its bucket, topic, queue and stream."""
    [table] = config.matching_tables(config.load(EXAMPLES / "snapshotter.conf"), {})
    [block] = table.destinations
    assert isinstance(block, config_outputs.S3DestinationBlock)
    place = replace(block.s3_location, endpoint=server.endpoint, addressing="path")
    sinks = [sink.model_copy(update={"endpoint": server.endpoint}) for sink in table.sinks]
    profiles = {
        name: replace(profile, endpoint=server.endpoint) for name, profile in table.profiles.items()
    }
    region, name = str(place.region), "laredo-archive"
    s3, sns, sqs, kinesis = (
        server.client(service, region_name=region) for service in ("s3", "sns", "sqs", "kinesis")
    )
    where = {"LocationConstraint": region}
    s3.create_bucket(Bucket=place.bucket, CreateBucketConfiguration=where)
    topic = sns.create_topic(Name=name)["TopicArn"]
    queue = sqs.create_queue(QueueName=name)["QueueUrl"]
    kinesis.create_stream(StreamName=name, ShardCount=1)
    kinesis.get_waiter("stream_exists").wait(StreamName=name)
    yield Example(place, sinks, profiles)
    for found in s3.list_objects_v2(Bucket=place.bucket).get("Contents", ()):
        s3.delete_object(Bucket=place.bucket, Key=found["Key"])
    s3.delete_bucket(Bucket=place.bucket)
    sns.delete_topic(TopicArn=topic)
    sqs.delete_queue(QueueUrl=queue)
    kinesis.delete_stream(StreamName=name)
