"""The gRPC service: who may call, which session answers, how a call ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Never

import grpc
import structlog

from laredo_fanout.serving.errors import (
    BadRequest,
    Draining,
    Full,
    NotReady,
    NotServed,
    Refused,
)
from laredo_fanout.serving.forms import now_us
from laredo_fanout.serving.options import TableOptions
from laredo_fanout.serving.periodic import (
    PeriodicSnapshots,
    info_message,
    parse_fetch,
    parse_list,
)
from laredo_fanout.serving.ports import ClientInfo, Lease, Registry, TooManyClients
from laredo_fanout.serving.request import SyncAsked, parse_sync
from laredo_fanout.serving.session import Session
from laredo_fanout.serving.shared import Shared
from laredo_fanout.serving.status import parse_status, status_response
from laredo_fanout.serving.tail import Tail, Tails
from laredo_fanout.serving.tokens import Tokens
from laredo_fanout.snapshots.info import table_of
from laredo_fanout.store.errors import StoreError, TableHidden, TableUnknown
from laredo_fanout.wire import replication_pb2 as wire

log = structlog.get_logger(__name__)

SERVICE = "laredo.replication.v1.LaredoReplicationService"
STUCK_S = 5.0


class ReplicationService:
    """Answers the calls of one serving process. Requests and responses are bytes."""

    def __init__(
        self,
        shared: Shared,
        tables: Mapping[str, TableOptions],
        tails: Tails,
        registry: Registry,
        tokens: Tokens | None,
    ) -> None:
        self._shared = shared
        self._tables = tables
        self._tails = tails
        self._registry = registry
        self._tokens = tokens
        self._snapshots = PeriodicSnapshots(tables)
        self._sessions: set[Session] = set()

    def handlers(self) -> grpc.GenericRpcHandler[bytes, bytes]:
        """What to register; serializers are left out, so that bytes pass as they are."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Sync": grpc.unary_stream_rpc_method_handler(self.sync),
                "ListSnapshots": grpc.unary_unary_rpc_method_handler(self.list_snapshots),
                "FetchSnapshot": grpc.unary_stream_rpc_method_handler(self.fetch_snapshot),
                "GetReplicationStatus": grpc.unary_unary_rpc_method_handler(self.status),
            },
        )

    @property
    def open_sessions(self) -> int:
        """Sessions that are running now."""
        return len(self._sessions)

    def end_all(self, verdict: Refused) -> None:
        """Stop every session with this verdict."""
        for session in list(self._sessions):
            session.end(verdict)

    async def sync(self, request: bytes, context: Any) -> None:
        """One client's stream, from its request to its end."""
        session: Session | None = None
        lease: Lease | None = None
        reason = "error"
        try:
            asked, tail = self._admit(request, context)
            lease = await self._register(asked, context)
            session = Session(
                self._shared,
                asked,
                self._tables[asked.table],
                tail,
                lease,
                send=context.write,
                snapshot_sequence=self._snapshots.sequence,
            )
            self._sessions.add(session)
            await session.run()
        except Refused as refused:
            reason = refused.reason
            await _refuse(context, refused)
        except asyncio.CancelledError:
            verdict = session.verdict if session is not None else None
            if verdict is None:
                reason = "client"
                raise
            reason = verdict.reason
            await _abort_stuck(context, verdict)
        except (TableHidden, TableUnknown) as error:
            reason = "refused"
            await _refuse(context, NotReady(str(error)))
        except StoreError as error:
            log.error("session failed", client=_peer(context), error=str(error))
            await context.abort(grpc.StatusCode.INTERNAL, str(error))
        finally:
            if session is not None:
                self._sessions.discard(session)
            if lease is not None:
                lease.close(reason)

    async def list_snapshots(self, request: bytes, context: Any) -> bytes:
        """The table's periodic snapshots, newest first."""
        try:
            table, limit = parse_list(request)
            self._served(table, context)
            infos = await self._snapshots.infos(table, limit)
        except Refused as refused:
            return await _refuse(context, refused)
        found = [info_message(info) for info in infos]
        return wire.ListSnapshotsResponse(snapshots=found).SerializeToString()

    async def fetch_snapshot(self, request: bytes, context: Any) -> None:
        """One periodic snapshot, row by row."""
        try:
            snapshot_id = parse_fetch(request)
            self.authorize(context, table_of(snapshot_id))
            async for message in self._snapshots.fetch(snapshot_id, self._shared.structs):
                await context.write(message)
        except Refused as refused:
            await _refuse(context, refused)

    async def status(self, request: bytes, context: Any) -> bytes:
        """The table's figures and its clients, over all serving processes."""
        try:
            table = parse_status(request)
            self._served(table, context)
        except Refused as refused:
            return await _refuse(context, refused)
        try:
            view = self._shared.reader.table(table)
        except TableUnknown:
            view = None
        clients = await self._registry.clients(table)
        newest = await self._snapshots.infos(table, 1)
        latest = info_message(newest[0]) if newest else None
        return status_response(view, clients, latest)

    def _admit(self, request: bytes, context: Any) -> tuple[SyncAsked, Tail]:
        """The request, if the caller may make it.

        :raises Refused: it may not.
        """
        if self._shared.drain.deadline_ms:
            raise Draining("the server is draining: connect elsewhere")
        asked = parse_sync(request)
        return asked, self._served(asked.table, context)

    def _served(self, table: str, context: Any) -> Tail:
        """The table's tail, if the caller may read it and it is configured.

        :raises NotServed: it isn't; said only to callers who are let in.
        """
        self.authorize(context, table)
        tail = self._tails.get(table)
        if tail is None:
            served = ", ".join(sorted(self._tables)) or "none"
            raise NotServed(f"table {table} isn't served here; tables: {served}")
        return tail

    def authorize(self, context: Any, table: str) -> None:
        """Check the caller's token.

        :raises NoToken: none, or an unknown one.
        :raises TokenForbids: not for this table.
        """
        if self._tokens is None:
            return
        metadata = dict(context.invocation_metadata() or ())
        given = metadata.get("authorization")
        self._tokens.check(given if isinstance(given, str) else None, table)

    async def _register(self, asked: SyncAsked, context: Any) -> Lease:
        info = ClientInfo(
            client_id=asked.client_id,
            table=asked.table,
            peer=_peer(context),
            batch=asked.batch,
            filtered=bool(asked.predicates),
            connected_at_us=now_us(),
        )
        try:
            return await self._registry.register(info)
        except TooManyClients as full:
            raise Full(str(full)) from full


def _peer(context: Any) -> str:
    return str(context.peer())


async def _refuse(context: Any, refused: Refused) -> Never:
    if isinstance(refused, BadRequest):
        log.info("bad request", peer=_peer(context), error=str(refused))
    await context.abort(refused.code, str(refused))
    raise AssertionError("abort returned")


async def _abort_stuck(context: Any, verdict: Refused) -> None:
    """End a call whose client may not be reading: the status waits behind what it didn't take.

    After STUCK_S the call is just dropped, which resets the stream.
    """
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
    log.info("session ended", peer=_peer(context), reason=verdict.reason, why=str(verdict))
    try:
        async with asyncio.timeout(STUCK_S):
            await _refuse(context, verdict)
    except TimeoutError:
        raise asyncio.CancelledError from verdict
