"""Makes the sinks that a configuration names."""

from collections.abc import Sequence

from laredo_archive.aws.clients import AwsClients
from laredo_snapshotter.config_outputs import KinesisSink, SinkConfig, SnsSink
from laredo_snapshotter.events.kinesis import KinesisStream
from laredo_snapshotter.events.sink import Sink
from laredo_snapshotter.events.sns import SnsTopic
from laredo_snapshotter.events.sqs import SqsQueue


def build(config: SinkConfig, clients: AwsClients) -> Sink:
    """The sink that ``config`` names. Nothing is asked of it yet."""
    if isinstance(config, SnsSink):
        return SnsTopic(config, clients)
    if isinstance(config, KinesisSink):
        return KinesisStream(config, clients)
    return SqsQueue(config, clients)


def build_all(configs: Sequence[SinkConfig], clients: AwsClients) -> list[Sink]:
    """One for each of ``configs``, in the same order."""
    return [build(config, clients) for config in configs]
