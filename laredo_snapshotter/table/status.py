"""A table's status, read off its writer, and the certificates in its configuration."""

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from laredo_archive.manifest.updates import Head
from laredo_archive.write.manifest_store import Availability
from laredo_model import position
from laredo_service.certificates import Certificate
from laredo_service.settings import path_text
from laredo_snapshotter import committer
from laredo_snapshotter.config import TableConfig
from laredo_snapshotter.status import DestinationStatus, SinkStatus, TableWriterStatus, WriterState
from laredo_snapshotter.table.session import WriterSession
from laredo_snapshotter.table.writer import TableWriter


def of(writer: TableWriter) -> TableWriterStatus:
    """Status of ``writer``'s table now."""
    archive, session = writer.archive, writer.session
    head = archive.head if archive is not None else None
    state, problem = _state(writer)
    return TableWriterStatus(
        table=writer.config.name,
        state=state,
        ready=state is WriterState.FOLLOWING and head is not None,
        problem=problem,
        writer_id=archive.claim.writer_id if archive is not None else None,
        destinations=tuple(_destination(writer, location) for location in writer.locations),
        sinks=tuple(_sinks(writer)),
        cas_conflicts=writer.counts.cas_conflicts,
        **_of_head(head),
        **_of_session(session, head),
    )


def _state(writer: TableWriter) -> tuple[WriterState, str | None]:
    session = writer.session
    if session is None or writer.state.ended:
        return writer.state, writer.problem
    if session.committer.blocked is not None:
        return WriterState.HOLDING, session.committer.blocked.reason
    if session.feed.problem is not None:
        return WriterState.CONNECTING, session.feed.problem
    if writer.counters.disconnected_because is not None:
        return WriterState.CONNECTING, writer.counters.disconnected_because
    if session.feed.cuts.live and not session.base_waits:
        return WriterState.FOLLOWING, None
    return WriterState.COPYING, None


def _destination(writer: TableWriter, location: str) -> DestinationStatus:
    availability = writer.counts.availabilities.of(location)
    collection = writer.collector.latest.get(location) if writer.collector is not None else None
    state: Literal["level", "away", "unknown"] = "unknown"
    unanswered_s = writer.counts.availabilities.unanswered_s(location)
    if availability is not None and availability.problem is not None:
        state = "away"
    elif _waits(writer) and unanswered_s > committer.PROMPT_S / 2:
        state = "away"
        since = datetime.now(UTC) - timedelta(seconds=unanswered_s)
        problem = f"a request hasn't been answered for {unanswered_s:.0f} s"
        availability = Availability(since, problem)
    elif availability is not None and writer.archive is not None:
        state = "level"
    return DestinationStatus(
        uri=writer.locations[location],
        place=location,
        state=state,
        since=availability.since if availability is not None and state != "unknown" else None,
        problem=availability.problem if availability is not None else None,
        head_position=writer.archive.heads.get(location) if writer.archive is not None else None,
        errors=writer.counts.destination_errors[location],
        collection=collection.to_json() if collection is not None else None,
    )


def _waits(writer: TableWriter) -> bool:
    """True if a commit is held, or the archive isn't open yet: requests of a commit that goes on
    may be long, as each uploads what is there."""
    return writer.session is None or writer.session.committer.blocked is not None


def _sinks(writer: TableWriter) -> Iterator[SinkStatus]:
    known = {sink.name: sink for sink in writer.notifier.statuses()} if writer.notifier else {}
    for configured in writer.config.sinks:
        found = known.get(configured.name)
        mark = found.last_notified if found is not None else None
        trouble = found.trouble if found is not None else None
        yield SinkStatus(
            name=configured.name,
            type=configured.type,
            outstanding=found.outstanding if found is not None else None,
            missed=found.missed if found is not None else 0,
            last_notified=None
            if mark is None
            else {"epoch": mark.epoch, "position": position.text(mark.position)},
            last_notified_at=found.last_notified_at if found is not None else None,
            since=None
            if trouble is None
            else datetime.now(UTC) - timedelta(seconds=time.monotonic() - trouble.since),
            problem=trouble.problem if trouble is not None else None,
        )


def _of_head(head: Head | None) -> dict[str, Any]:
    if head is None:
        return {}
    return {
        "epoch": head.epoch,
        "head_position": head.position,
        "seen_position": head.seen_position,
        "committed_at": head.committed_at,
        "complete_at": max(head.committed_at, head.seen_at or head.committed_at),
        "rows": head.rows,
        "state_checksum": head.checksum,
        "snapshot_created_at": head.snapshot_created_at,
        "snapshot_age_seconds": (datetime.now(UTC) - head.snapshot_created_at).total_seconds(),
        "snapshot_rows": head.snapshot_rows,
        "snapshot_bytes": head.snapshot_bytes,
        "diffs_since_snapshot": head.diffs_since_snapshot,
        "diff_bytes": head.diff_bytes,
    }


def _of_session(session: WriterSession | None, head: Head | None) -> dict[str, Any]:
    churn = head.diff_changes if head is not None else 0
    if session is None:
        return {"churn_records": churn}
    feed, committer = session.feed, session.committer
    blocked, waiting = committer.blocked, committer.unverified
    reach = session.journal.latest if session.journal is not None else None
    base = session.live_base
    base_rows = base.rows if base is not None and not base.whole else None
    return {
        "server": feed.endpoint.server,
        "stream_position": feed.cuts.position,
        "history": None if feed.cuts.history is None else str(feed.cuts.history),
        "churn_records": churn + session.buffered(head),
        "buffer_depth": session.buffered(head),
        "buffer_bytes": feed.cuts.changes.memory_bytes,
        "buffer_spilled_bytes": feed.cuts.changes.spilled_bytes + committer.waiting_spilled_bytes,
        "waiting_bytes": committer.waiting_bytes,
        "rebase": session.rebase_reason,
        "base_rows_written": session.rebase.rows_written
        if session.rebase is not None
        else base_rows,
        "last_rebase_problem": session.rebase_problem,
        "rebase_failing_seconds": 0.0
        if session.rebase_failing_since is None
        else time.monotonic() - session.rebase_failing_since,
        "cuts_forgotten": feed.cuts.cuts_forgotten,
        "holding": None
        if blocked is None
        else {
            "reason": blocked.reason,
            "seconds": round(time.monotonic() - blocked.since, 1),
            "attempts": blocked.attempts,
            "stream_closed": feed.closed_because,
        },
        "boundary_position": session.verified.position,
        "unverified": None
        if waiting is None
        else {
            "position": position.text(waiting.position),
            "boundary": position.text(waiting.verified),
            "seconds": round(time.monotonic() - waiting.since, 1),
        },
        "journal": reach._asdict() if reach is not None else None,
    }


# The certificates that a writer's configuration names.


def configured(tables: Sequence[TableConfig]) -> list[Certificate]:
    """Each file once, by the first table that names it."""
    found: dict[Path, Certificate] = {}
    for table in tables:
        tls = table.endpoint.tls
        if tls is None:
            continue
        for key, path in (("cert", tls.cert), ("ca", tls.ca)):
            if path is not None:
                name = path_text((*table.path, "source", "tls", key))
                found.setdefault(path, Certificate(name, path, any_will_do=key == "ca"))
    return list(found.values())
