"""Boundaries of an archive, and those at which several tables are known at once.

Every artifact ends at a boundary, where the table's state is known. As-of P (or
a time) is the last boundary at or before it, in the newest history that has one.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from laredo_archive.errors import ManifestDamaged, NoSuchBoundary
from laredo_archive.manifest.model import Artifact, Manifest, text_of_time
from laredo_model import position as positions
from laredo_model.column import Column
from laredo_model.errors import BadPosition, BadTime
from laredo_model.position import History, Position
from laredo_service import files


@dataclass(frozen=True)
class Epoch:
    """A base and the diffs after it, contiguous by position."""

    #: The epoch.
    number: int
    base: Artifact
    #: Its diffs, in order.
    diffs: tuple[Artifact, ...]

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """The base, then the diffs."""
        return (self.base, *self.diffs)


@dataclass(frozen=True)
class Boundary:
    """A position at which the table's state is known: the end of an artifact."""

    #: A base and the diffs after it, perhaps beyond the boundary; an epoch's boundaries share it.
    chain: tuple[Artifact, ...]
    #: How many of them lead to the boundary.
    count: int

    @classmethod
    def after(cls, artifacts: tuple[Artifact, ...]) -> "Boundary":
        """The end of ``artifacts``, a base and diffs that follow it."""
        return cls(artifacts, len(artifacts))

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """A base, and the diffs from there up to the boundary."""
        return self.chain[: self.count]

    @property
    def last(self) -> Artifact:
        return self.chain[self.count - 1]

    @property
    def base(self) -> Artifact:
        return self.chain[0]

    @property
    def diffs(self) -> tuple[Artifact, ...]:
        return self.chain[1 : self.count]

    def __reduce__(self) -> tuple[Any, ...]:
        # A task needs no artifact beyond the boundary.
        return Boundary.after, (self.artifacts,)

    @property
    def epoch(self) -> int:
        return self.last.epoch

    @property
    def position(self) -> Position:
        return self.last.to_position

    @property
    def history(self) -> History | None:
        return self.last.history

    @property
    def histories(self) -> frozenset[History | None]:
        """The history of the boundary, and those that go on from it in its epoch."""
        return frozenset(artifact.history for artifact in self.chain[self.count - 1 :])

    @property
    def time(self) -> datetime:
        """PostgreSQL's commit time of the last transaction; else the writer's clock."""
        return self.last.to_time or self.last.created_at

    @property
    def columns(self) -> tuple[Column, ...] | None:
        return self.base.columns

    def __str__(self) -> str:
        at = positions.text(self.position) if self.last.knows_its_end else "a position not recorded"
        return f"{at} (epoch {self.epoch})"


def epochs_of(manifest: Manifest, where: str) -> list[Epoch]:
    """The archive's epochs, oldest first.

    :raises ManifestDamaged: if an epoch has no base, or a gap.
    """
    by_number: dict[int, list[Artifact]] = {}
    for artifact in manifest.artifacts:
        by_number.setdefault(artifact.epoch, []).append(artifact)
    return [_epoch(number, by_number[number], where) for number in sorted(by_number)]


def _epoch(number: int, artifacts: list[Artifact], where: str) -> Epoch:
    bases = [artifact for artifact in artifacts if artifact.is_snapshot]
    if len(bases) != 1:
        raise ManifestDamaged(where, f"epoch {number} has {len(bases)} snapshots, expected 1")
    diffs = [artifact for artifact in artifacts if not artifact.is_snapshot]
    if not bases[0].by_original:
        # In archives of the original only the manifest's order counts: positions may repeat, or
        # be unknown.
        diffs.sort(key=lambda diff: diff.to_position)
    at = bases[0].to_position
    for diff in diffs:
        if diff.from_position != at:
            begins = positions.text(diff.from_position or positions.ZERO)
            raise ManifestDamaged(
                where,
                f"epoch {number} is at {positions.text(at)}, and its next diff begins at {begins}",
            )
        at = diff.to_position
    return Epoch(number, bases[0], tuple(diffs))


def boundaries(all_epochs: Iterable[Epoch]) -> list[Boundary]:
    """Every boundary, in the order of epochs, in each by position."""
    return [
        Boundary(chain, count)
        for chain in (epoch.artifacts for epoch in all_epochs)
        for count in range(1, len(chain) + 1)
    ]


def moment(text: str) -> Position | datetime:
    """Parse a point in time: a WAL position, or ISO 8601, in UTC unless it has an offset.

    :raises BadTime: if it is neither.
    """
    with suppress(BadPosition):
        return positions.parse(text)
    try:
        return files.parse(text)
    except BadTime:
        raise BadTime(
            f"{text!r} is neither a position such as 0/19F000 nor a time such as"
            " 2026-06-03T21:40:11Z"
        ) from None


def find(
    manifest: Manifest,
    where: str,
    as_of: Position | datetime | None = None,
    *,
    exact: bool = False,
    epoch: int | None = None,
) -> Boundary:
    """The last boundary at or before ``as_of``; the head if that is None.

    ``exact`` refuses an earlier one; ``epoch`` searches that epoch only.

    :raises NoSuchBoundary: if there is none, or ``as_of`` is later than the
        archive knows the table to be complete.
    :raises ManifestDamaged: if an epoch has no base, or a gap.
    """
    found = boundaries(epochs_of(manifest, where))
    head = found[-1] if found else None
    if epoch is not None:
        found = [boundary for boundary in found if boundary.epoch == epoch]
    if head is None or not found:
        what = "there is nothing in it yet" if epoch is None else f"it has no epoch {epoch}"
        raise NoSuchBoundary(where, f"{what}; see laredo-archive ls")
    if as_of is None:
        return found[-1]
    # A position beyond an earlier epoch's end isn't the future: later epochs have it.
    _refuse_future(manifest, where, head, as_of)
    for history in _newest_first(found):
        of_history = [
            boundary
            for boundary in found
            if boundary.history == history and _is_placed(boundary, as_of)
        ]
        before = [boundary for boundary in of_history if _at(boundary, as_of) <= _value(as_of)]
        if before and (not exact or _at(before[-1], as_of) == _value(as_of)):
            return before[-1]
    raise NoSuchBoundary(where, _why_not(found, as_of, exact))


def _is_placed(boundary: Boundary, as_of: Position | datetime) -> bool:
    """True if it is known to be before or after ``as_of``."""
    return isinstance(as_of, datetime) or as_of == positions.ZERO or boundary.last.knows_its_end


def _at(boundary: "Boundary | CommonBoundary", as_of: Position | datetime) -> float:
    return boundary.time.timestamp() if isinstance(as_of, datetime) else boundary.position


def _value(as_of: Position | datetime) -> float:
    return as_of.timestamp() if isinstance(as_of, datetime) else as_of


def _newest_first(found: Sequence[Boundary]) -> list[History | None]:
    return list(dict.fromkeys(boundary.history for boundary in reversed(found)))


def _refuse_future(
    manifest: Manifest, where: str, head: Boundary, as_of: Position | datetime
) -> None:
    if isinstance(as_of, datetime):
        known = max(head.time, manifest.seen_at or head.time)
        if as_of > known:
            raise NoSuchBoundary(
                where,
                f"{text_of_time(as_of)} is later than the archive's last seen time,"
                f" {text_of_time(known)}; leave --as-of out for its head, or wait",
            )
        return
    seen = max(head.position, manifest.seen_position or head.position)
    if as_of > seen:
        raise NoSuchBoundary(
            where,
            f"{positions.text(as_of)} is after the archive's last seen position,"
            f" {positions.text(seen)}; leave --as-of out for its head, or wait",
        )


def _why_not(found: Sequence[Boundary], as_of: Position | datetime, exact: bool) -> str:
    wanted = text_of_time(as_of) if isinstance(as_of, datetime) else positions.text(as_of)
    earlier = [boundary for boundary in found if _at(boundary, as_of) <= _value(as_of)]
    later = [boundary for boundary in found if _at(boundary, as_of) > _value(as_of)]
    if exact and earlier:
        after = f", the one after at {_text(later[0], as_of)}" if later else ""
        return (
            f"no artifact ends exactly at {wanted}: the one before ends at"
            f" {_text(earlier[-1], as_of)}{after}"
        )
    unplaced = [boundary for boundary in found if not _is_placed(boundary, as_of)]
    found = [boundary for boundary in found if boundary not in unplaced]
    if unplaced:
        after = f", {_text(found[0], as_of)}" if found else ""
        return (
            f"{wanted} is before the first position that this archive of the original records"
            f"{after}; the position of the base before it isn't recorded. To read that base, ask"
            " for 0/0"
        )
    first = _text(min(found, key=lambda boundary: _at(boundary, as_of)), as_of)
    return f"{wanted} is before its first boundary, {first}"


def _text(boundary: Boundary, as_of: Position | datetime) -> str:
    if isinstance(as_of, datetime):
        return text_of_time(boundary.time)
    return positions.text(boundary.position)


def path(all_epochs: Sequence[Epoch], start: Boundary, end: Boundary) -> list[Artifact] | None:
    """The diffs that lead from one boundary to a later one without a gap; None if none do.

    They go on through a new epoch's base if that ``continues`` the one before.
    """
    steps: list[Artifact] = []
    if start.base.by_original or end.base.by_original:
        return None  # an old row in the original's diffs is that of the last change
    at = start.position
    for epoch in all_epochs:
        if not start.epoch <= epoch.number <= end.epoch:
            continue
        if epoch.number != start.epoch and not _goes_on(epoch.base, at):
            return None
        for diff in epoch.diffs:
            if diff.to_position > at and diff.to_position <= end.position:
                steps.append(diff)
                at = diff.to_position
    return steps if at == end.position else None


def _goes_on(base: Artifact, at: Position) -> bool:
    return bool(base.continues) and base.to_position == at


# The positions at which several tables are known at once, from their manifests alone.
#
# A boundary has a table's state at one position. Up to ``unchanged_until`` no transaction changed
# it after that, so that it is known at every position in between; another table's boundary there is
# one of both.


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
    #: A boundary of at least one of the tables, or a position that their catalog records.
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
    epochs = epochs_of(manifest, where)
    for epoch in epochs:
        after_head = _after_head(manifest) if epoch is epochs[-1] else None
        spans = list(_with_ends(epoch, after_head))
        for history in dict.fromkeys(artifact.history for artifact, _ in spans):
            if history is not None:
                _add(found.setdefault(history, []), spans, history)
    return found


def _add(
    of_history: list[KnownSpan], spans: Sequence[tuple[Artifact, Position]], history: History
) -> None:
    """Add an epoch's spans up to the last of this history.

    Those before it are of histories that it goes on from, so their positions mean the same in it.
    What is known after its last one is known in the next history.
    """
    last = max(n for n, (artifact, _) in enumerate(spans) if artifact.history == history)
    for number, (artifact, until) in enumerate(spans[: last + 1]):
        if artifact.history is None:
            continue
        if of_history and of_history[-1].start == artifact.to_position:
            # The next epoch's base, at the boundary where the one before ends.
            of_history.pop()
        time, at = artifact.to_time or artifact.created_at, artifact.to_position
        follows = number < len(spans) - 1
        end = at if number == last and follows else until
        of_history.append(KnownSpan(artifact.epoch, at, at, end, time, follows))


def _after_head(manifest: Manifest) -> Position | None:
    if manifest.unchanged_until is None or manifest.seen_position is None:
        return None
    # An older writer knows only seen_position, and starts that over in a new history.
    return min(manifest.unchanged_until, manifest.seen_position)


def _with_ends(epoch: Epoch, after_head: Position | None) -> Iterator[tuple[Artifact, Position]]:
    """Each artifact, and how far the table stays as it is at its end."""
    ends = [diff.unchanged_until for diff in epoch.diffs]
    for artifact, end in zip(epoch.artifacts, [*ends, after_head], strict=True):
        yield artifact, max(artifact.to_position, end or artifact.to_position)


def known_too(spans: Spans, positions: Iterable[tuple[History, Position]]) -> Spans:
    """The spans of a table that a catalog also knows at ``positions``.

    At each position the table is as at its last boundary at or before it, if no diff follows that
    boundary. A diff itself records up to which position the table was unchanged
    (``unchanged_until``). A merged diff may hide the last boundary before the position.
    """
    found = {history: list(of_history) for history, of_history in spans.items()}
    for history, position in positions:
        of_history = found.get(history, [])
        before = bisect_right(of_history, position, key=lambda span: span.since) - 1
        if before < 0 or of_history[before].diff_follows:
            continue
        if of_history[before].until < position:
            # In between nothing is known: a row may have come and gone.
            there = replace(of_history[before], since=position, until=position)
            of_history.insert(before + 1, there)
    return found


def last_boundary(artifacts: Sequence[Artifact], position: Position) -> Artifact | None:
    """The artifact that ends last at or before ``position``.

    None if there is none, or if a merged diff hides it.
    """
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
    """The last of one history's boundaries at or before ``as_of``.

    ``exact``: only if all tables are known at ``as_of``, or a transaction of theirs committed at
    that time.
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
    """The first of one history's boundaries after ``as_of``."""
    return next((each for each in found if _at(each, as_of) > _value(as_of)), None)
