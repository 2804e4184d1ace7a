"""The server's status, composed for /status, /health and /metrics."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from laredo_fanout.app import options
from laredo_fanout.app.scrape import Scrape, ServerParts
from laredo_fanout.batch.status import CopyProgress, IngestStatus, ReplicatedTableStatus
from laredo_fanout.config import Config
from laredo_fanout.serving.ports import ClientState
from laredo_fanout.store import reader
from laredo_fanout.store.environment import SourceIdentity
from laredo_fanout.store.table import TableRecord
from laredo_fanout.watchdog import SERVING
from laredo_model import position
from laredo_service import build
from laredo_service.certificates import CertificateWatch
from laredo_service.http.connections import HttpCounts
from laredo_service.metrics import Exposition

_WAITING = "waiting"
_NO_JOURNAL = {"entries": 0, "oldest_sequence": None, "oldest_age_seconds": None}


class ServerView:
    """Reads the state of the running server's parts, without waiting for PostgreSQL or the disk."""

    def __init__(self, config: Config, port: int, parts: ServerParts) -> None:
        self._config, self._port, self._parts = config, port, parts
        self._started = datetime.now(UTC)
        self.http = HttpCounts()
        self.certificates = CertificateWatch(options.certificates(config))
        self._scrape = Scrape(parts, self.http, self.certificates, self._records)
        self.draining = False

    def change_config(self, config: Config) -> None:
        """Show the tables and limits of this configuration from now on."""
        self._config = config

    @property
    def position_text(self) -> str:
        """The position up to which everything is durable."""
        return position.text(self._parts.store.position)

    def problems(self) -> list[str]:
        """Reasons why the server isn't ready; empty if it is connected, serving, and all tables are
        live.
        """
        if self.draining:
            return ["draining"]
        source = self._parts.ingest.status()
        found, records = [], self._records()
        error = self._source_error(source)
        if error is not None:
            found.append(f"source {self._config.source_name}: {error}")
        elif not source.connected:
            found.append(f"source {self._config.source_name}: not connected yet")
        for table in self._config.tables:
            problem = _table_problem(table.name, source, records.get(table.name))
            if problem is not None:
                found.append(problem)
        return [*found, *(self._not_listening() or self._parts.watchdog.suspicions(SERVING))]

    def unserved(self) -> list[str]:
        """Reasons why the server can't serve the rows that it has; empty if it serves them, however
        old.

        An unavailable source isn't a reason, nor is a table that is copied while another is served.
        """
        if self.draining:
            return ["draining"]
        found, records = self._not_listening(), self._records()
        known = (records.get(table.name) for table in self._config.tables)
        if not any(record is not None and record.shown for record in known):
            found.append("no table has been copied yet")
        return found

    def _not_listening(self) -> list[str]:
        silent = self._parts.watchdog.suspicions(SERVING)
        if self._parts.children.listening > len(silent):
            return []
        return silent or [self._parts.children.error or "no serving process listens yet"]

    def _source_error(self, source: IngestStatus) -> str | None:
        return self._parts.ingest.error or source.error

    def _records(self) -> dict[str, TableRecord]:
        """The record of each table that clients see, or will; made once for all tables."""
        return reader.current_of_each(self._parts.store.tables.values())

    def status(self) -> dict[str, Any]:
        """The JSON of /status."""
        source = self._parts.ingest.status()
        problems = self.problems()
        clients, records = self._parts.clients.of(), self._records()
        clients_of = Counter(client.info.table for client in clients)
        return {
            "ready": not problems,
            "problems": problems,
            "version": build.version(),
            "commit": build.commit(),
            "started_at": _time(self._started),
            "store": {
                "path": str(self._config.state.path),
                "bytes": self._parts.store.used_bytes,
                "max_bytes": self._config.state.max_size,
                "scrub": self._parts.scrub.status(),
            },
            "fanout": {
                "port": self._port,
                "workers": self._config.fanout.grpc.workers,
                "listening": self._parts.children.listening,
                "pids": self._parts.children.pids,
                "restarts": self._parts.children.restarts,
                "error": self._parts.children.error,
                "clients": len(clients),
                "max_clients": self._config.max_clients,
                "disconnects": self._parts.clients.left(),
            },
            "processes": {
                "hangs": dict(self._parts.watchdog.hangs),
                "silent": self._parts.watchdog.suspicions(),
            },
            "sources": {self._config.source_name: self._source(source)},
            "tables": {
                table.name: self._table(
                    table.name, source, records.get(table.name), clients_of[table.name]
                )
                for table in self._config.tables
            },
            "clients": [_client(client, records.get(client.info.table)) for client in clients],
        }

    def recopy(self, name: str) -> dict[str, Any] | None:
        """A table's re-copy, as in the JSON of /status.

        :raises KeyError: if no such table is configured.
        """
        if all(table.name != name for table in self._config.tables):
            raise KeyError(name)
        return _recopy(self._parts.ingest.status().tables.get(name, ReplicatedTableStatus()))

    def _source(self, source: IngestStatus) -> dict[str, Any]:
        identity, configured = self._parts.store.source, self._config.source
        return {
            "connected": source.connected,
            "phase": source.phase,
            "reconnects": source.reconnects,
            "stream_faults": source.stream_faults,
            "stream_fault": source.stream_fault and source.stream_fault.shown(),
            "error": self._source_error(source),
            "position": self.position_text,
            "history": None if identity is None else str(identity.history),
            "lag_bytes": source.known_lag_bytes,
            "lag_seconds": round(source.lag_seconds, 3),
            "slot_name": self._slot_name(identity),
            "slot": _slot(source),
            "because": "" if identity is None else identity.because,
            "former_histories": []
            if identity is None
            else [
                {"history": str(former), "until": position.text(until)}
                for former, until in identity.ancestors
            ],
            "warnings": [
                {"kind": warning.kind, "text": warning.text, "cure": warning.cure}
                for warning in source.slot_warnings
            ],
            "slot_losses": source.slot_losses,
            "stale_senders_ended": source.senders_ended,
            "strange_messages": source.strange_messages,
            "publication": configured.publication.name if configured is not None else None,
            "catchup": self._parts.fall_behind and self._parts.fall_behind.status().to_json(),
            "path": self._path(),
            "standby": None
            if self._parts.ingest.standby is None
            else self._parts.ingest.standby.shown(),
        }

    def _slot_name(self, identity: SourceIdentity | None) -> str | None:
        configured = self._config.source
        if configured is None:
            return None
        return configured.slot_name if identity is None else identity.slot

    def _path(self) -> list[dict[str, Any]] | None:
        """This relay, then the servers between it and PostgreSQL; None if it is no relay."""
        relay = self._parts.ingest.relay
        if relay is None:
            return None
        return [
            {
                "server_id": hop.server_id,
                "address": hop.address or None,
                "position": position.text(hop.position),
                "delay_seconds": None if hop.delay_s is None else round(hop.delay_s, 6),
            }
            for hop in relay.relay_status().path
        ]

    def _table(
        self, name: str, source: IngestStatus, record: TableRecord | None, clients: int
    ) -> dict[str, Any]:
        table_status = source.tables.get(name, ReplicatedTableStatus())
        journal: dict[str, Any] = _NO_JOURNAL
        if record is not None:
            journal = {
                "entries": record.entries,
                "oldest_sequence": record.oldest_sequence,
                "oldest_age_seconds": _age(record),
            }
        shown = record is not None and record.shown
        return {
            "status": _WAITING if record is None else record.status.value,
            "phase": table_status.phase,
            "error": table_status.error or (record.error if record is not None else None) or None,
            "rows": record.rows if record is not None else 0,
            "copied_rows": table_status.copied_rows,
            "estimated_rows": table_status.estimated_rows,
            "ranges": table_status.ranges,
            "ranges_done": table_status.ranges_done,
            "waiting_for": list(table_status.waiting_for),
            "copy": None
            if table_status.copy is None or table_status.recopying
            else _copy(table_status.copy),
            "recopy": _recopy(table_status),
            "sequence": record.sequence if record is not None else 0,
            "position": _table_position(record, self._parts.store.position) if shown else None,
            "verified_position": position.text(record.boundary) if record is not None else None,
            "putting_right": _repair(record),
            "damage": (record.damage or None) if record is not None else None,
            "altered_by": list(table_status.altered_by),
            "floor": position.text(record.floor) if record is not None and shown else None,
            "key_fields": list(record.key_fields) if record is not None else [],
            "journal": journal,
            "clients": clients,
            "snapshots": self._parts.snapshots.of(name),
            "archive": self._archive(name),
        }

    def _archive(self, name: str) -> dict[str, Any] | None:
        shown = self._parts.archives.status(name)
        if shown is not None:
            shown["replays"] = {
                outcome: number
                for (table, outcome), number in sorted(self._parts.children.replays.items())
                if table == name
            }
        return shown

    async def metrics(self, accept: str) -> Exposition:
        """Answer a request of /metrics that has this Accept header."""
        return await self._scrape.answer(self._config, accept)


def _table_problem(name: str, source: IngestStatus, record: TableRecord | None) -> str | None:
    """The reason why the table isn't live; None if it is."""
    table_status = source.tables.get(name)
    if table_status is not None and table_status.error:
        return (
            table_status.error
            if name in table_status.error
            else f"table {name}: {table_status.error}"
        )
    if record is None or not record.shown:
        return f"table {name}: {_phase(table_status, record)}"
    return None


def _client(client: ClientState, record: TableRecord | None) -> dict[str, Any]:
    # 0: nothing was sent to this client yet, so there is no lag to measure.
    newest = client.sequence if record is None or not client.sequence else record.sequence
    behind = max(0, newest - client.sequence)
    since = datetime.fromtimestamp(client.info.connected_at_us / 1_000_000, UTC)
    return {
        "client_id": client.info.client_id,
        "table": client.info.table,
        "peer": client.info.peer,
        "state": client.state,
        "sequence": client.sequence,
        "behind": behind,
        "buffer_depth": client.depth,
        "connected_at": _time(since),
        "batch": client.info.batch,
        "filtered": client.info.filtered,
    }


def _table_position(record: TableRecord | None, of_store: int) -> str:
    return position.text((record and record.position) or of_store)


def _slot(source: IngestStatus) -> dict[str, Any]:
    """The slot as PostgreSQL last reported it; None for each value that is unknown."""
    slot, seen_at = source.slot, source.slot_seen_at
    oldest = slot and slot.oldest
    return {
        "wal_status": slot and slot.wal_status,
        "safe_wal_bytes": slot and slot.safe_wal_size,
        "retained_bytes": slot and slot.retained,
        "unconfirmed_bytes": slot and slot.unconfirmed,
        "max_wal_bytes": slot and slot.keep_bytes,
        "invalidated": slot and slot.invalidated,
        "idle_timeout_seconds": slot and slot.idle_timeout_s,
        "failover": slot and slot.failover,
        "xmin_age": slot and slot.xmin_age,
        "oldest_transaction": oldest and {"pid": oldest.pid, "age_seconds": oldest.age_s},
        "seen_at": None if seen_at is None else _time(datetime.fromtimestamp(seen_at, UTC)),
    }


def _copy(progress: CopyProgress) -> dict[str, Any]:
    """The progress of a copy."""
    left = progress.seconds_left
    return {
        "phase": progress.phase,
        "rows": progress.rows,
        "estimated_rows": progress.estimated_rows,
        "fraction": round(progress.fraction, 4),
        "ranges": progress.ranges,
        "ranges_done": progress.ranges_done,
        "waiting_for": list(progress.waiting_for),
        "rows_per_second": round(progress.rows_per_second, 1),
        "seconds_left": None if left is None else round(left, 1),
    }


def _repair(record: TableRecord | None) -> dict[str, Any] | None:
    """The repair of rows that moved with a partition, with its reason; None: none is needed."""
    suspect_range = None if record is None else record.suspect_range
    if suspect_range is None:
        return None
    return {"since": position.text(suspect_range.start), "reason": suspect_range.because}


def _recopy(table_status: ReplicatedTableStatus) -> dict[str, Any] | None:
    """The re-copy under way, and the outcome of the last one; None if there was none."""
    last = table_status.last_recopy
    if not table_status.recopying and last is None:
        return None
    return {
        "active": table_status.recopying,
        "progress": _copy(table_status.copy)
        if table_status.recopying and table_status.copy is not None
        else None,
        "last": last
        and {
            "ended_at": _time(datetime.fromtimestamp(last.ended_at, UTC)),
            "differing": last.differing,
            "error": last.error,
        },
    }


def _phase(table_status: ReplicatedTableStatus | None, record: TableRecord | None) -> str:
    """The phase of a table that clients can't see yet."""
    if table_status is not None and table_status.waiting_for:
        pids = ", ".join(map(str, table_status.waiting_for))
        return f"waiting for the transactions of PostgreSQL process {pids} to end"
    if table_status is not None:
        return table_status.phase
    return _WAITING if record is None else record.status.value


def _age(record: TableRecord) -> float | None:
    if not record.entries:
        return None
    return round(max(0.0, time.time() - record.oldest_time_us / 1_000_000), 3)


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
