"""A server for tests of clients that keep a copy."""

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

from laredo_fanout.client import FanoutClient, sync_client
from laredo_fanout.client.table.rows import Row, parse
from tests.fanout.client.real_server import TABLE, Source, line_of, serving
from tests.support.processes import PATIENCE_S


def row(instance: str, key: str, tenant: str, size: int) -> Row:
    return parse(line_of(instance, key, tenant, size))


class Server:
    """The server for thread-safe clients: on the loop that they share."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.port = 0
        self._stack: AsyncExitStack | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @contextmanager
    def client(self, **options: Any) -> Iterator[FanoutClient]:
        """A client that has the table's rows."""
        with FanoutClient(self.address, TABLE, **options) as client:
            client.await_ready(PATIENCE_S)
            yield client

    def start(self) -> None:
        sync_client.call(self._start())

    def stop(self) -> None:
        if self._stack is not None:
            sync_client.call(self._stack.aclose())
            self._stack = None

    async def _start(self) -> None:
        self._stack = AsyncExitStack()
        self.port = await self._stack.enter_async_context(serving(self.source, self.port))
