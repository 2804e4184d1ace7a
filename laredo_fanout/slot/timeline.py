"""Compares the server's timelines with the store's: whether the store's positions still hold.

A promoted standby goes on with the former server's WAL up to its switch point and with WAL of
its own after it, on a timeline of its own number. A restored backup does the same from where
its recovery ended; a disk's copy that is put back goes on under the *same* number, so nothing
but its WAL itself distinguishes it from what was there before.

https://www.postgresql.org/docs/current/continuous-archiving.html (Timelines)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from laredo_model import position as position_
from laredo_model.position import Ancestor, History, Lineage

if TYPE_CHECKING:
    from laredo_fanout.postgres.replication_stream import Switch
    from laredo_fanout.store.meta import SourceIdentity


class Server(NamedTuple):
    """The server's identity, timelines and WAL position."""

    history: History
    #: How far its WAL reaches.
    position: int
    #: The timelines that its own comes from, oldest first, each with where it was left.
    switches: tuple[Switch, ...]


class HistoryVerdict(NamedTuple):
    """The history that positions belong to from now on."""

    lineage: Lineage
    #: Why the store's positions don't hold any more; None: they do.
    broken: str | None


def first(server: Server) -> Lineage:
    """The lineage of a store that has followed nothing yet."""
    return Lineage(server.history, _ancestors(server, {}))


def judge(known: SourceIdentity, position: int, server: Server, now_s: int) -> HistoryVerdict:
    """Judge if the store's ``position`` means the same on this server.

    ``now_s`` names a history that PostgreSQL's own numbers don't distinguish from the one before.
    """
    before, now = known.history, server.history
    if before.system_identifier != now.system_identifier:
        return HistoryVerdict(
            first(server),
            f"the server is another cluster: system identifier {now.system_identifier},"
            f" the store's is {before.system_identifier}",
        )
    if before.database_oid != now.database_oid:
        return HistoryVerdict(
            first(server),
            f"the database is another one: oid {now.database_oid},"
            f" the store's is {before.database_oid}",
        )
    if before.timeline == now.timeline:
        broken = _other_switches(known, server) or _went_back(position, server)
    else:
        broken = _not_from(known, position, server) or _other_switches(known, server)
    if broken is not None:
        return another(known, server, now_s, broken)
    ancestors = _ancestors(server, _restored(known))
    restored = before.restored if before.timeline == now.timeline else 0
    return HistoryVerdict(Lineage(now._replace(restored=restored), ancestors), None)


def another(known: SourceIdentity, server: Server, now_s: int, broken: str) -> HistoryVerdict:
    """Verdict for the same cluster with other WAL than the store followed."""
    # A timeline number beyond the known one is new; any other was that of other WAL once.
    restored = now_s if server.history.timeline <= known.history.timeline else 0
    history = server.history._replace(restored=restored)
    return HistoryVerdict(Lineage(history, _ancestors(server, _restored(known))), broken)


def _went_back(position: int, server: Server) -> str | None:
    if server.position >= position:
        return None
    return (
        f"the server's WAL ends at {position_.text(server.position)}, before the stored position"
        f" {position_.text(position)}: an earlier state of the database was restored"
    )


def _not_from(known: SourceIdentity, position: int, server: Server) -> str | None:
    """Reason why a server on another timeline doesn't continue from the store's position."""
    before, now = known.history.timeline, server.history.timeline
    left = {switch.timeline: switch.position for switch in server.switches}
    if before not in left or now < before:
        return f"the server is on timeline {now}, which doesn't come from the store's {before}"
    if position > left[before]:
        return (
            f"timeline {now} left the store's {before} at {position_.text(left[before])},"
            f" before the stored position {position_.text(position)}"
        )
    return None


def _other_switches(known: SourceIdentity, server: Server) -> str | None:
    """Reason why the same timeline numbers name other timelines: a backup was restored twice."""
    left = {switch.timeline: switch.position for switch in server.switches}
    for ancestor in known.ancestors:
        timeline = ancestor.history.timeline
        if left.get(timeline) != ancestor.until:
            there = "never" if timeline not in left else f"at {position_.text(left[timeline])}"
            return (
                f"the server left timeline {timeline} {there}, the store's history left it at"
                f" {position_.text(ancestor.until)}: a backup was restored"
            )
    return None


def _restored(known: SourceIdentity) -> dict[int, int]:
    histories = [known.history, *(ancestor.history for ancestor in known.ancestors)]
    return {history.timeline: history.restored for history in histories}


def _ancestors(server: Server, restored: dict[int, int]) -> tuple[Ancestor, ...]:
    return tuple(
        Ancestor(
            server.history._replace(
                timeline=switch.timeline, restored=restored.get(switch.timeline, 0)
            ),
            switch.position,
        )
        for switch in server.switches
    )
