"""A notifier in a test: over an archive in memory, towards a recorder."""

from collections import Counter

from laredo_archive.aws.clients import AwsClients
from laredo_archive.write.table_archive import TableArchive
from laredo_service.retry import Backoff
from laredo_snapshotter.config_outputs import SqsSink
from laredo_snapshotter.events.notifier import Notifier
from laredo_snapshotter.events.sinks import Sink, build

QUICK = Backoff(initial=0.001, maximum=0.01)


class Counts:
    """Counters of a notifier."""

    def __init__(self) -> None:
        self.sinks: list[str] = []
        self.sent: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def sink(self, name: str) -> None:
        self.sinks.append(name)

    def notice_sent(self, sink: str) -> None:
        self.sent[sink] += 1

    def notice_refused(self, sink: str) -> None:
        self.refused[sink] += 1


class Telling:
    """A notifier over ``archive`` until the end of the block."""

    def __init__(self, archive: TableArchive, *sinks: Sink, retry: Backoff = QUICK) -> None:
        self.counts = Counts()
        self.notifier = Notifier(archive, "public.t", sinks, self.counts, retry)

    def __enter__(self) -> Notifier:
        self.notifier.start()
        return self.notifier

    def __exit__(self, *_: object) -> None:
        self.notifier.stop()


def queue(endpoint: str, name: str, clients: AwsClients) -> Sink:
    return build(SqsSink(type="sqs", queue_url=f"{endpoint}/1/{name}"), clients)


def marks(archive: TableArchive) -> list[tuple[int, int, str]]:
    """Marks of the archive's artifacts, in a recorder's form."""
    assert archive.published is not None
    return [(a.epoch, a.to_position, a.kind.value) for a in archive.published.manifest.artifacts]
