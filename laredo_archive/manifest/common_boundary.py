"""The positions at which several tables are known at once, from their manifests alone.

A boundary has a table's state at one position. Up to ``unchanged_until`` no transaction changed it
after that, so that it is known at every position in between; another table's boundary there is one
of both.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from laredo_archive.manifest import timeline
from laredo_archive.manifest.model import Artifact, Manifest
from laredo_archive.manifest.timeline import Epoch
from laredo_model.position import History, Position


@dataclass(frozen=True)
class KnownSpan:
    """A table's boundary, and how far the table is known to stay as it is there."""

    #: The boundary's epoch.
    epoch: int
    #: The boundary.
    start: Position
    #: The first position at which the table is known to be as there: the boundary, or a later one.
    since: Position
    #: The last position at which the table is known to be the same.
    until: Position
    #: As Boundary.time: no transaction in it committed later.
    time: datetime
    #: Whether a diff begins at the boundary.
    diff_follows: bool = False


Spans = Mapping[History, Sequence[KnownSpan]]
"""A table's spans, ascending, by the history that their positions mean something in."""


@dataclass(frozen=True)
class CommonBoundary:
    """A position at which every one of some tables is known."""

    #: What the positions belong to.
    history: History
    #: A boundary of at least one of the tables, or a position that their catalog says.
    position: Position
    #: The last position at which all of them are known to be the same as there.
    until: Position
    #: No transaction in any of them committed later.
    time: datetime
    #: Each table's own boundary, in the order of the tables.
    spans: tuple[KnownSpan, ...]


def spans_of(manifest: Manifest, where: str) -> Spans:
    """The spans of one table. Artifacts without a history, of other writers, have none.

    :raises ManifestDamaged: if an epoch has no base, or a gap.
    """
    found: dict[History, list[KnownSpan]] = {}
    epochs = timeline.epochs(manifest, where)
    for epoch in epochs:
        after_head = _after_head(manifest) if epoch is epochs[-1] else None
        for artifact, until in _with_ends(epoch, after_head):
            if artifact.history is None:
                continue
            of_history = found.setdefault(artifact.history, [])
            if of_history and of_history[-1].start == artifact.to_position:
                # The next epoch's base, at the boundary where the one before ends.
                of_history.pop()
            time, at = artifact.to_time or artifact.created_at, artifact.to_position
            follows = artifact is not epoch.artifacts[-1]
            of_history.append(KnownSpan(artifact.epoch, at, at, until, time, follows))
    return found


def _after_head(manifest: Manifest) -> Position | None:
    if manifest.unchanged_until is None or manifest.seen_position is None:
        return None
    # An older writer knows only seen_position, and begins that again in a new history.
    return min(manifest.unchanged_until, manifest.seen_position)


def _with_ends(epoch: Epoch, after_head: Position | None) -> Iterator[tuple[Artifact, Position]]:
    """Each artifact, and how far the table stays as it is at its end."""
    ends = [diff.unchanged_until for diff in epoch.diffs]
    for artifact, end in zip(epoch.artifacts, [*ends, after_head], strict=True):
        yield artifact, max(artifact.to_position, end or artifact.to_position)


def known_too(spans: Spans, positions: Iterable[tuple[History, Position]]) -> Spans:
    """The spans of a table that is also known at ``positions``, by a catalog: there it is as at its
    last boundary at or before each.

    Only where no diff follows that boundary. A diff itself records up to which position the table
    was unchanged (``unchanged_until``), and one that was merged hides the boundaries in between, of
    which one may be the last before the position.
    """
    found = {history: list(of_history) for history, of_history in spans.items()}
    for history, position in positions:
        of_history = found.get(history, [])
        before = bisect_right(of_history, position, key=lambda span: span.since) - 1
        if before < 0 or of_history[before].diff_follows:
            continue
        if of_history[before].until < position:
            # Of what is in between nothing is known: a row may have come and gone.
            there = replace(of_history[before], since=position, until=position)
            of_history.insert(before + 1, there)
    return found


def last_boundary(artifacts: Sequence[Artifact], position: Position) -> Artifact | None:
    """The artifact that ends last at or before ``position``; None if there is none, or if a merged
    diff hides it."""
    for artifact in reversed(artifacts):
        if artifact.to_position <= position:
            return artifact
        start = artifact.from_position
        if artifact.parts is not None and start is not None and start < position:
            return None
    return None


def common(tables: Sequence[Spans]) -> dict[History, list[CommonBoundary]]:
    """The boundaries that all tables have in common, ascending; the newest history first."""
    if not tables:
        return {}
    histories = [h for h in reversed(list(tables[0])) if all(h in spans for spans in tables)]
    found: dict[History, list[CommonBoundary]] = {}
    for history in histories:
        common_ones = [
            CommonBoundary(history, span.since, span.until, span.time, (span,))
            for span in tables[0][history]
        ]
        for spans in tables[1:]:
            common_ones = list(_intersection(common_ones, spans[history]))
        found[history] = common_ones
    return found


def _intersection(
    ones: Iterable[CommonBoundary], others: Sequence[KnownSpan]
) -> Iterator[CommonBoundary]:
    at = 0
    for one in ones:
        while at < len(others) and others[at].until < one.position:
            at += 1
        after = at
        while after < len(others) and others[after].since <= one.until:
            other = others[after]
            yield CommonBoundary(
                one.history,
                max(one.position, other.since),
                min(one.until, other.until),
                max(one.time, other.time),
                (*one.spans, other),
            )
            after += 1


def last_at(
    found: Iterable[CommonBoundary], as_of: Position | datetime | None, *, exact: bool = False
) -> CommonBoundary | None:
    """The last of one history's at or before ``as_of``.

    ``exact``: only if all tables are there as they are at ``as_of``; a time is meant exactly if a
    transaction of theirs committed then.
    """
    last = None
    for boundary in found:
        if as_of is not None and _at(boundary, as_of) > _value(as_of):
            break
        last = boundary
    if last is None or as_of is None or not exact:
        return last
    if isinstance(as_of, datetime):
        return last if last.time == as_of else None
    return last if as_of <= last.until else None


def first_after(
    found: Iterable[CommonBoundary], as_of: Position | datetime
) -> CommonBoundary | None:
    """The first of one history's after ``as_of``."""
    return next((each for each in found if _at(each, as_of) > _value(as_of)), None)


def _at(boundary: CommonBoundary, as_of: Position | datetime) -> float:
    return boundary.time.timestamp() if isinstance(as_of, datetime) else boundary.position


def _value(as_of: Position | datetime) -> float:
    return as_of.timestamp() if isinstance(as_of, datetime) else as_of
