"""The chain of artifacts from a reader's position to an archive's head, diff by diff.

Diffs connect boundaries; a new epoch's base connects to the epoch before if it ``continues``
that. Otherwise there is a gap, which only the base's rows can fill.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from laredo_archive.manifest.model import Artifact
from laredo_archive.manifest.timeline import Boundary, Epoch
from laredo_model import position as positions
from laredo_model.position import History, Position

UNKNOWN_HISTORY = "unknown"
"""A history as options write it, for archives without one."""
ANY_EPOCH = 0
"""The epoch of a reader that knows only position and history."""


@dataclass(frozen=True)
class ReaderPosition:
    """Position that a reader has reached in an archive."""

    #: The epoch, or ANY_EPOCH.
    epoch: int
    #: The boundary that it has read; None: nothing of the epoch yet, not even its base.
    position: Position | None
    #: The history of the position, as options write it.
    history: str

    @classmethod
    def at(cls, artifact: Artifact) -> "ReaderPosition":
        """After reading ``artifact``."""
        return cls(artifact.epoch, artifact.to_position, history_of(artifact.history))

    @classmethod
    def of(cls, boundary: Boundary) -> "ReaderPosition":
        """After reading up to a boundary."""
        return cls.at(boundary.last)

    @classmethod
    def before(cls, epoch: Epoch) -> "ReaderPosition":
        """Before reading an epoch's base."""
        return cls(epoch.number, None, history_of(epoch.base.history))

    def __str__(self) -> str:
        if self.position is None:
            return f"the base of epoch {self.epoch}" if self.epoch else "the first base"
        known = f" (epoch {self.epoch})" if self.epoch else ""
        return positions.text(self.position) + known


@dataclass(frozen=True)
class NextArtifact:
    """The next artifact for a reader. A base's rows are read only after a gap."""

    #: A diff, or a base.
    artifact: Artifact
    #: The epoch whose columns it has.
    epoch: Epoch
    #: Why no diff connects to this base; None if there is no gap.
    gap: str | None = None

    @property
    def mark(self) -> ReaderPosition:
        """The reader's position after it."""
        return ReaderPosition.at(self.artifact)

    @property
    def boundary(self) -> Boundary:
        """The boundary at its end."""
        return Boundary.after((self.epoch.base, self.artifact)[self.artifact.is_snapshot :])

    @property
    def has_rows(self) -> bool:
        """True if its rows are read."""
        return self.gap is not None or not self.artifact.is_snapshot


def history_of(history: History | None) -> str:
    """A history as options write it."""
    return UNKNOWN_HISTORY if history is None else str(history)


def _history(artifact: Artifact) -> str:
    return history_of(artifact.history)


def is_earlier(history: History | None, than: str) -> bool:
    """True if a server of ``history`` was promoted to one of the history with the text ``than``."""
    if history is None or than == UNKNOWN_HISTORY:
        return False
    later = positions.parse_history(than)
    return positions.goes_on(history, later) and history.restored <= later.restored


def is_behind(epochs: Sequence[Epoch], start: ReaderPosition) -> bool:
    """True if the archive ends before ``start``, in the same history or in one before it."""
    if start.position is None or not epochs:
        return bool(epochs) and start.epoch > epochs[-1].number
    last = epochs[-1].artifacts[-1]
    if _history(last) != start.history:
        # A copy never has a later epoch than a reader of what was copied.
        is_copy = last.epoch <= (start.epoch or last.epoch)
        return is_copy and is_earlier(last.history, start.history)
    return (last.epoch, last.to_position) < (start.epoch or last.epoch, start.position)


def following(epochs: Sequence[Epoch], start: ReaderPosition) -> Iterator[NextArtifact]:
    """Every artifact after ``start``, in order; the first has a gap if ``start`` is gone."""
    if start.position is None:
        index = _first_from(epochs, start.epoch)
        yield from _whole(epochs[index:], None, "nothing before it was read")
        return
    found = _epoch_index(epochs, start)
    if found is None:
        yield from _whole(epochs[_after(epochs, start) :], None, _why_not_there(epochs, start))
        return
    epoch = epochs[found]
    yield from (
        NextArtifact(diff, epoch) for diff in epoch.diffs if diff.to_position > start.position
    )
    yield from _whole(epochs[found + 1 :], epoch, None)


def up_to(
    epochs: Sequence[Epoch], start: ReaderPosition, goal: ReaderPosition
) -> Iterator[NextArtifact]:
    """Every artifact after ``start``, in order, none beyond ``goal``."""
    for step in following(epochs, start):
        if (step.mark.epoch, step.mark.position or 0) > (goal.epoch, goal.position or 0):
            return
        yield step


def mark_now(epochs: Sequence[Epoch], mark: ReaderPosition) -> ReaderPosition | None:
    """``mark`` with its present epoch, which a re-base changes; None if it is gone."""
    if mark.position is None:
        is_there = not mark.epoch or mark.epoch in (epoch.number for epoch in epochs)
        return mark if is_there else None
    found = _epoch_index(epochs, mark)
    return (
        None if found is None else ReaderPosition(epochs[found].number, mark.position, mark.history)
    )


def _whole(
    epochs: Sequence[Epoch], before: Epoch | None, gap: str | None
) -> Iterator[NextArtifact]:
    for epoch in epochs:
        yield NextArtifact(epoch.base, epoch, gap if before is None else _why_gap(before, epoch))
        yield from (NextArtifact(diff, epoch) for diff in epoch.diffs)
        before = epoch


def _epoch_index(epochs: Sequence[Epoch], start: ReaderPosition) -> int | None:
    """The index of the epoch to continue in; None if ``start`` is in none."""
    for index, epoch in enumerate(epochs):
        ends = [diff for diff in epoch.diffs if _is_at(diff, start)]
        if epoch.number == start.epoch or not start.epoch:
            if ends or _is_at(epoch.base, start):
                return index
        elif epoch.number > start.epoch:
            # A re-base gives the diffs after its base to the new epoch.
            if ends:
                return index
            follows = epoch.number == start.epoch + 1 and bool(epoch.base.continues)
            if follows and _is_at(epoch.base, start):
                return index
    return None


def _is_at(artifact: Artifact, start: ReaderPosition) -> bool:
    return artifact.to_position == start.position and _history(artifact) == start.history


def _first_from(epochs: Sequence[Epoch], number: int) -> int:
    found = (index for index, epoch in enumerate(epochs) if epoch.number >= number)
    return next(found, len(epochs))


def _after(epochs: Sequence[Epoch], start: ReaderPosition) -> int:
    """The index of the first epoch after ``start``; 0 if there is none, as in another archive."""
    index = _first_from(epochs, start.epoch + 1)
    return index if index < len(epochs) else 0


def _why_not_there(epochs: Sequence[Epoch], start: ReaderPosition) -> str:
    if not any(_history(a) == start.history for epoch in epochs for a in epoch.artifacts):
        return (
            f"it has nothing of the history {start.history}: that is another archive's, or"
            " retention has removed all of it"
        )
    first = epochs[0].base
    oldest = f"{positions.text(first.to_position)} (epoch {first.epoch})"
    return (
        "no boundary is there: retention has removed it, or a merged diff leads past it; the oldest"
        f" boundary is {oldest}"
    )


def _why_gap(before: Epoch, epoch: Epoch) -> str | None:
    base, last = epoch.base, before.artifacts[-1]
    if base.continues and base.to_position == last.to_position:
        return None
    where = f"epoch {epoch.number} begins with a new base at {positions.text(base.to_position)}"
    if _history(base) != _history(last):
        return f"{where}, of another history ({_history(base)} after {_history(last)})"
    if base.columns != before.base.columns:
        return f"{where}, as the table's columns changed"
    return f"{where}, and changes were missed before it"
