"""The replication service: authenticates each call, starts its session, and reports status.

It knows no transport: `endpoints.grpc` and `endpoints.connect` bring calls, and translate refusals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress

import structlog

from laredo_fanout.serving import slices
from laredo_fanout.serving.call import (
    MAX_PEER_REQUEST_BYTES,
    MAX_REQUEST_BYTES,
    RELAY,
    STANDBY,
    TABLES,
    Call,
    Caller,
    Exchange,
    StallGuard,
    Tokens,
    decode,
    is_peer,
    parse_sync,
    table_name,
)
from laredo_fanout.serving.errors import (
    MAX_DETAILS,
    BadRequest,
    Damaged,
    Draining,
    Full,
    NotReady,
    NotServed,
    Refused,
    SessionFailed,
    TokenForbids,
)
from laredo_fanout.serving.filters import read as read_conditions
from laredo_fanout.serving.forms import now_us, timestamp
from laredo_fanout.serving.journal import Tail, Tails
from laredo_fanout.serving.options import ServingTableOptions
from laredo_fanout.serving.periodic import PeriodicSnapshots, info_message, parse_fetch, parse_list
from laredo_fanout.serving.ports import ClientInfo, ClientState, Lease, Registry, TooManyClients
from laredo_fanout.serving.session.live_group import LiveGroups
from laredo_fanout.serving.session.session import Session
from laredo_fanout.serving.shared import ServingResources
from laredo_fanout.serving.slices import Slice, Sliced
from laredo_fanout.snapshots import table_of
from laredo_fanout.store.errors import (
    JournalDamaged,
    RowsDamaged,
    StoreError,
    TableHidden,
    TableUnknown,
)
from laredo_fanout.store.reader import StoreReader, TableView
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import position

# GetReplicationStatus: the status call, a table's figures and its connected clients.

_INT32_MAX = 2**31 - 1


def server_path(reader: StoreReader, delay_us: int) -> list[wire.ServerHop]:
    """This server, and those between it and PostgreSQL."""
    here = wire.ServerHop(
        server_id=reader.server_id(),
        source_position=position.text(reader.position()[0]),
        delay_us=delay_us,
    )
    stored = reader.upstream_path()
    upstream = wire.GetReplicationStatusResponse.FromString(stored) if stored else None
    return [here, *(upstream.path if upstream is not None else ())]


def status_response(
    view: TableView | None,
    clients: list[ClientState],
    latest: wire.ReplicationSnapshotInfo | None,
    path: Sequence[wire.ServerHop] = (),
) -> Sliced[bytes]:
    """The answer with a table's figures, zeros before its copy; ``path``: for a relay's request."""
    response = wire.GetReplicationStatusResponse(
        connected_clients=len(clients), latest_snapshot=latest, path=path
    )
    slice_ = Slice()
    for client in clients:
        response.clients.append(_client(client, view.sequence if view else 0))
        if slice_.done_with(0):
            yield
    if view is not None:
        response.current_sequence = view.sequence
        response.journal_oldest_sequence = view.oldest_sequence
        response.journal_entry_count = view.entries
        response.row_count = view.rows
    return response.SerializeToString()


def _client(client: ClientState, newest: int) -> wire.ConnectedClient:
    behind = max(newest - client.sequence, 0) if client.sequence else 0
    return wire.ConnectedClient(
        client_id=client.info.client_id,
        current_sequence=client.sequence,
        behind_count=behind,
        buffer_depth=min(client.depth, _INT32_MAX),
        connected_at=timestamp(client.info.connected_at_us),
        state=client.state,
    )


log = structlog.get_logger(__name__)

SERVICE = "laredo.replication.v1.LaredoReplicationService"
FETCHING = "(FetchSnapshot)"
"""The client id of a call that names none."""
_END_WITHIN_S = 5.0
"""Time that clients have to take the answer that their table is no longer served, in seconds."""


ReportStandby = Callable[
    [str, Mapping[str, tuple[int, int]], str], Awaitable[wire.ServerRole | None]
]
"""Takes a standby's id, what it has of each table (incarnation, position), and the id of the server
that is to take over, if any. It answers with this server's role; None: it shares its slot with
nobody."""


class ReplicationService:
    """Answers the calls of one serving process. Requests and responses are bytes."""

    def __init__(
        self,
        shared: ServingResources,
        tables: Mapping[str, ServingTableOptions],
        tails: Tails,
        registry: Registry,
        tokens: Tokens | None,
        *,
        report_standby: ReportStandby | None = None,
    ) -> None:
        self._report_standby = report_standby
        self._shared = shared
        self._tables = tables
        self._tails = tails
        self._registry = registry
        self._tokens = tokens
        self._snapshots = PeriodicSnapshots(tables)
        self._groups = {tail.name: LiveGroups(tail) for tail in tails}
        self._calls: set[Call] = set()

    @property
    def open_streams(self) -> int:
        """The number of streams that are open now."""
        return len(self._calls)

    def end_all(self, verdict: Refused) -> None:
        """Stop every stream with this verdict."""
        for call in list(self._calls):
            call.end(verdict)

    def check_tokens(self) -> None:
        """End the streams whose token may no longer read, as the tokens file has changed."""
        for call in list(self._calls):
            try:
                self._authorize(call.caller, call.table)
            except Refused as refused:
                call.end(refused)

    async def change_tables(self, tables: Mapping[str, ServingTableOptions]) -> None:
        """Serve these tables from now on, and open streams as before.

        Streams of a table that isn't among them end; returns when they have ended, or
        after a moment if one takes nothing.
        """
        gone = [call for call in self._calls if call.table in self._tables.keys() - tables.keys()]
        self._tables = tables
        self._tails.change(tables)
        groups, self._groups = self._groups, {}
        for tail in self._tails:
            self._groups[tail.name] = groups.get(tail.name) or LiveGroups(tail)
        self._snapshots.change(tables)
        archives = {name: table.archive for name, table in tables.items() if table.archive}
        self._shared.archives.change(archives)
        for call in gone:
            call.end(self._not_served(call.table))
        if gone:
            ended = asyncio.gather(*(call.ended() for call in gone))
            with suppress(TimeoutError):
                await asyncio.wait_for(ended, _END_WITHIN_S)

    async def sync(self, request: bytes, exchange: Exchange) -> None:
        """Serve one client's stream, from its request to its end.

        :raises Refused: the call ends with this.
        """

        async def serve(call: Call) -> None:
            asked, filters = parse_sync(request)
            if asked.standby:
                self._check_peer(call.caller)
            call.caller.client_id = asked.client_id
            tail = self._served(call.caller, asked.table)
            call.table = asked.table
            # Parsed only now: a caller who may not read costs nothing more.
            conditions = await slices.run(read_conditions(filters)) if filters else None
            del filters
            lease = await self._register(call, batch=asked.batch, filtered=asked.filtered)
            session = Session(
                call,
                self._shared,
                asked,
                tail,
                lease,
                conditions=conditions,
                options=self._tables[asked.table],
                exchange=exchange,
                groups=self._groups[asked.table],
                snapshot_sequence=self._snapshots.sequence,
            )
            await session.run()

        await self._stream(exchange, serve)

    async def fetch_snapshot(self, request: bytes, exchange: Exchange) -> None:
        """Serve a periodic snapshot, row by row.

        :raises Refused: the call ends with this.
        """

        async def serve(call: Call) -> None:
            snapshot_id = parse_fetch(request)
            call.caller.client_id = FETCHING
            table = table_of(snapshot_id)
            self._authorize(call.caller, table)
            call.table = table
            snapshots = self._snapshots
            snapshots.check(snapshot_id)
            lease = await self._register(call, batch=False, filtered=False)
            lease.update(sequence=0, depth=0, state="snapshot")
            guard = StallGuard(call, self._shared.listener.stall_timeout_s, lambda: False)
            try:
                messages = snapshots.fetch(snapshot_id, self._shared.structs)
                async with aclosing(messages):
                    async for some in messages:
                        size = 0
                        for packed in exchange.packed(some):
                            await exchange.send(packed)
                            size += len(packed)
                            guard.moved()
                        self._shared.sent.add(size, len(some))
            finally:
                guard.stop()

        await self._stream(exchange, serve)

    async def _stream(self, exchange: Exchange, serve: Callable[[Call], Awaitable[None]]) -> None:
        """Admit the call, serve it, and release what it holds however it ends.

        :raises Refused: the call ends with this.
        """
        call = Call(exchange.caller)
        self._calls.add(call)
        reason = "error"
        try:
            if self._shared.drain.deadline_ms:
                raise Draining("the server is draining: connect elsewhere")
            # Before anything of the request is decoded.
            self.authenticate(call.caller)
            await serve(call)
            reason = "done"
        except Refused as refused:
            reason = refused.reason
            _log_refused(refused, call.caller)
            raise
        except asyncio.CancelledError:
            verdict = call.verdict
            if verdict is None:
                reason = "client"
                raise
            reason = verdict.reason
            _take_over(verdict, call.caller)
            raise verdict from None
        except (TableHidden, TableUnknown) as error:
            reason = "refused"
            raise NotReady(str(error)) from error
        except (RowsDamaged, JournalDamaged) as damaged:
            self._shared.report_damage(damaged.damage)
            log.error("session ended: store damaged", error=str(damaged))
            raise Damaged(str(damaged)) from damaged
        except StoreError as error:
            log.error("session failed", client=call.caller.peer, error=str(error))
            raise SessionFailed(str(error)) from error
        finally:
            self._calls.discard(call)
            if call.lease is not None:
                call.lease.close(reason)

    async def list_snapshots(self, request: bytes, caller: Caller) -> bytes:
        """Answer with the table's periodic snapshots, newest first.

        :raises Refused: the call ends with this.
        """
        try:
            self.authenticate(caller)
            table, limit = parse_list(request)
            self._served(caller, table)
            infos = await self._snapshots.infos(table, limit)
        except Refused as refused:
            _log_refused(refused, caller)
            raise
        found = [info_message(info) for info in infos]
        return wire.ListSnapshotsResponse(snapshots=found).SerializeToString()

    async def status(self, request: bytes, caller: Caller) -> bytes:
        """Answer with the table's figures and its clients, over all serving processes.

        :raises Refused: the call ends with this.
        """
        try:
            self.authenticate(caller)
            # A standby's report names all of its tables.
            most = MAX_PEER_REQUEST_BYTES if self._is_peer(caller) else MAX_REQUEST_BYTES
            asked = decode(wire.GetReplicationStatusRequest, request, most)
            if STANDBY in asked.capabilities and not asked.table:
                self._check_peer(caller)
                return await self._role(asked.standby, take_over=asked.take_over)
            if TABLES in asked.capabilities and not asked.schema and not asked.table:
                tables = sorted(name for name in self._tables if self._may_read(caller, name))
                return wire.GetReplicationStatusResponse(tables=tables).SerializeToString()
            table = table_name(asked.schema, asked.table)
            self._served(caller, table)
        except Refused as refused:
            _log_refused(refused, caller)
            raise
        try:
            view = self._shared.reader.table(table)
        except TableUnknown:
            view = None
        clients = await self._registry.clients(table)
        newest = await self._snapshots.infos(table, 1)
        latest = info_message(newest[0]) if newest else None
        path: Sequence[wire.ServerHop] = ()
        if RELAY in asked.capabilities:
            path = server_path(self._shared.reader, self._tails.delay_us)
        return await slices.run(status_response(view, clients, latest, path))

    def _is_peer(self, caller: Caller) -> bool:
        return is_peer(caller.authorization, self._shared.listener.peer_token)

    def _check_peer(self, caller: Caller) -> None:
        """Check that the caller is a server of the same slot, by the token of the standby block.

        :raises TokenForbids: it has another one, or this server has no such block.
        """
        if not self._is_peer(caller):
            raise TokenForbids(
                "only servers of the same slot may ask this: give them the same standby.token"
            )

    async def _role(self, report: wire.StandbyReport, *, take_over: str) -> bytes:
        """Take a standby's report; answer with this server's role.

        :raises NotServed: it shares its slot with no other server.
        """
        tables = {each.table: (each.incarnation, each.position) for each in report.tables}
        take = self._report_standby
        role = None if take is None else await take(report.server_id, tables, take_over)
        if role is None:
            raise NotServed("this server has no standbys: it is configured without a standby block")
        return wire.GetReplicationStatusResponse(role=role).SerializeToString()

    def _served(self, caller: Caller, table: str) -> Tail:
        """The table's tail, if the caller may read it and it is configured.

        :raises NoToken: the token isn't known.
        :raises TokenForbids: it is not for this table.
        :raises NotServed: the table isn't; only callers who are let in see this.
        """
        self._authorize(caller, table)
        tail = self._tails.get(table)
        if tail is None:
            raise self._not_served(table)
        return tail

    def _not_served(self, table: str) -> NotServed:
        served = ", ".join(sorted(self._tables)) or "none"
        return NotServed(f"table {table} isn't served here; tables: {served}")

    def authenticate(self, caller: Caller) -> None:
        """Check the caller's token, before anything of the request is decoded.

        :raises NoToken: the caller has no token that is known.
        """
        if self._tokens is not None:
            self._tokens.known(caller.authorization)

    def _authorize(self, caller: Caller, table: str) -> None:
        """Check the token; an empty table is that of a call whose request isn't read yet.

        :raises NoToken: the token isn't known.
        :raises TokenForbids: it is not for this table.
        """
        if self._tokens is None:
            return
        if table:
            self._tokens.check(caller.authorization, table)
        else:
            self._tokens.known(caller.authorization)

    def _may_read(self, caller: Caller, table: str) -> bool:
        try:
            self._authorize(caller, table)
        except TokenForbids:
            return False
        return True

    async def _register(self, call: Call, *, batch: bool, filtered: bool) -> Lease:
        """Register the client; the call's end removes it."""
        caller = call.caller
        info = ClientInfo(
            client_id=caller.client_id,
            table=call.table,
            peer=caller.peer,
            batch=batch,
            filtered=filtered,
            connected_at_us=now_us(),
            owner=self._owner(caller),
            host=caller.host,
        )
        try:
            call.lease = await self._registry.register(info)
        except TooManyClients as full:
            raise Full(str(full)) from full
        return call.lease

    def _owner(self, caller: Caller) -> str:
        """The identity that the stream counts for; "" if there is only one identity."""
        if self._tokens is not None:
            return self._tokens.owner(caller.authorization)
        if caller.certificate:
            return f"certificate {caller.certificate}"
        return "" if caller.is_local else f"address {caller.host}"


def _log_refused(refused: Refused, caller: Caller) -> None:
    if isinstance(refused, BadRequest):
        log.info("request refused", peer=caller.peer, error=str(refused)[:MAX_DETAILS])
    elif refused.reason != Refused.reason:
        _log_ended(refused, caller)


def _log_ended(verdict: Refused, caller: Caller) -> None:
    log.info("session ended", peer=caller.peer, reason=verdict.reason, detail=str(verdict))


def _take_over(verdict: Refused, caller: Caller) -> None:
    """Undo the cancellation: the call's task goes on, and sends the verdict to the client."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
    _log_ended(verdict, caller)
