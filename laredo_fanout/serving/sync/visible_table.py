"""Reads the table for a client: once it is live, and never in a state older than the client's."""

from __future__ import annotations

import asyncio

from laredo_fanout.serving.calls.request import CheckedSyncRequest
from laredo_fanout.serving.errors import Behind, Draining, NotReady
from laredo_fanout.serving.ports import Lease
from laredo_fanout.serving.shared import ServingResources
from laredo_fanout.serving.sync import resume
from laredo_fanout.store.errors import TableUnknown
from laredo_fanout.store.meta import SourceIdentity
from laredo_fanout.store.view import TableView
from laredo_model import position


async def caught_up_view(
    shared: ServingResources, asked: CheckedSyncRequest, lease: Lease
) -> tuple[TableView, SourceIdentity]:
    """Read the table, once the store has caught up with the client.

    :raises NotReady: it isn't shown yet.
    :raises Behind: it stayed behind for `behind_wait_s`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + shared.listener.behind_wait_s
    while True:
        woken = shared.wakeups.current()
        # The tail may be a wake-up behind: with the table read first here, the session
        # never begins with an older state than it ends with.
        view, source = read_table(shared, asked.table)
        if not resume.ahead(asked, view, source):
            return view, source
        lease.update(sequence=0, depth=0, state="waiting")
        left = deadline - loop.time()
        if left <= 0:
            raise Behind(
                f"behind: this server is at {position.text(view.position)}, the client at "
                f"{position.text(asked.position or 0)} of the same history; "
                "try again, or another server"
            )
        if shared.drain.deadline_ms:
            raise Draining("the server is draining: connect elsewhere")
        await asyncio.wait([woken], timeout=left)


def read_table(shared: ServingResources, table: str) -> tuple[TableView, SourceIdentity]:
    """The table and its source as they are now.

    :raises NotReady: it isn't shown.
    """
    try:
        view = shared.reader.table(table)
    except TableUnknown as error:
        raise NotReady(f"table {table} is not ready, its copy hasn't started") from error
    source = shared.reader.source()
    if not view.shown or source is None:
        raise resume.not_ready(view)
    return view, source
