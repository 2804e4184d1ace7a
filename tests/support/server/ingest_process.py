"""An ingest in a process of its own, which is killed."""

from multiprocessing.connection import Connection
from pathlib import Path

from laredo_fanout.ingest.supervisor import Ingest
from laredo_fanout.source_options import SourceOptions, SourceTableOptions
from laredo_fanout.store.writer import Store
from tests.support.forked import forking


class IngestProcess:
    """Follows tables of the schema public as the options say, until it is killed."""

    def __init__(self, options: SourceOptions, path: Path, *tables: str) -> None:
        receiver, sender = forking().Pipe(duplex=False)
        self._commits: Connection = receiver
        self._process = forking().Process(target=_follow, args=(options, path, tables, sender))
        self._process.start()
        sender.close()

    def wait_commit(self) -> None:
        """Wait for the next commit.

        :raises EOFError: if it has ended by itself.
        """
        self._commits.recv()

    def ends_within(self, seconds: float) -> bool:
        """Give it some time; whether it has ended by itself."""
        self._process.join(seconds)
        return self._process.exitcode is not None

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._commits.close()


def _follow(
    options: SourceOptions, path: Path, tables: tuple[str, ...], commits: Connection
) -> None:
    followed = [SourceTableOptions("public", name) for name in tables]
    store = Store.open(path, max_size=4 << 30)
    Ingest(options, followed, store, lambda commit: commits.send(commit.position)).run()
