"""The gRPC server of one serving process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from laredo_fanout.serving.options import ServingOptions
from laredo_fanout.serving.ports import Registry, Wakeups

if TYPE_CHECKING:
    from laredo_fanout.store.reader import StoreReader


async def serve(
    options: ServingOptions,
    reader: StoreReader,
    wakeups: Wakeups,
    registry: Registry,
    drain: asyncio.Event,
    on_listening: Callable[[int], None] | None = None,
) -> None:
    """Listen and serve until `drain` is set, then say GoAway, wait for the grace and return.

    `on_listening` is called once with the bound port (useful with port 0).

    Raises:
        CannotListen: the address is taken or the TLS files can't be used.
    """
    raise NotImplementedError
