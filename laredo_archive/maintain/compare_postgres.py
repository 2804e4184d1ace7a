"""Compares an archive with its table in PostgreSQL (docs/commit-protocol.md, Proof).

The database has its table's state at some moment between two positions. If the archive has the same
state at a boundary there, they are equal. If the archive knows that the table didn't change between
the two, they are equal or different. Else nothing is known, yet or for good.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from laredo_archive.errors import DatabaseUnusable, NoSuchBoundary
from laredo_archive.maintain.postgres_table import ComparedTable, Database, Measured
from laredo_archive.manifest.merged import unfolding
from laredo_archive.manifest.timeline import Boundary
from laredo_archive.reader import Archive
from laredo_model import position as positions
from laredo_model.position import History, Position

POLL_S = 0.5


class Comparison(Enum):
    """Result of a comparison."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class ComparisonResult:
    """The outcome of a comparison, and its reason."""

    #: Equal, different or undecided.
    outcome: Comparison
    #: Why, as a sentence.
    reason: str


def compare(
    archive: Archive,
    dsn: str,
    *,
    lock: bool = False,
    wait_s: float = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> ComparisonResult:
    """Compare the table with its archive, which is read again for up to ``wait_s`` seconds.

    ``lock`` keeps writers out of the table meanwhile, so that it is always decided
    if only the archive gets that far.

    :raises DatabaseUnusable: if the database can't be asked, or is another one.
    :raises NoSuchBoundary: if the archive is empty.
    """
    head = archive.boundary()
    if head.last.state_checksum is None:
        raise NoSuchBoundary(
            archive.uri,
            "its artifacts have no state_checksum; it can't be compared with a database",
        )
    with Database.connected(dsn) as database:
        history = database.history()
        foreign = _foreign(archive, history)
        if foreign is not None:
            return foreign
        table = database.table(archive.manifest.table, head.columns)
        if table.differing:
            names = ", ".join(table.differing)
            return ComparisonResult(
                Comparison.UNDECIDED,
                f"the table's columns aren't those of the archive's last epoch ({names}): the"
                " archive hasn't followed a schema change yet",
            )
        progress(f"{archive.manifest.table}: PostgreSQL computes its rows and checksum")
        if not lock:
            measured = database.measure(table)
            verdict = _await(archive, measured, wait_s, progress, decide)
        else:
            with database.locked(table) as measured:
                verdict = _await(archive, measured, wait_s, progress, decide_locked)
        return _with_extra(verdict, table)


def _with_extra(verdict: ComparisonResult, table: ComparedTable) -> ComparisonResult:
    if not table.extra:
        return verdict
    names = ", ".join(table.extra)
    return ComparisonResult(
        verdict.outcome, f"{verdict.reason} (leaving out {names}, which the archive doesn't have)"
    )


def _foreign(archive: Archive, history: History) -> ComparisonResult | None:
    own = archive.boundary().history
    # Whether it went back is nothing that a database knows of itself.
    if own is None or own._replace(restored=0) == history:
        return None
    if own._replace(timeline=history.timeline, restored=0) != history:
        raise DatabaseUnusable(
            "the database", f"it is of history {history}, the archive of {own}: another database"
        )
    return ComparisonResult(
        Comparison.UNDECIDED,
        f"the database is on timeline {history.timeline}, the archive still on {own.timeline}",
    )


Decide = Callable[[Archive, Measured], ComparisonResult | None]


def _await(
    archive: Archive,
    measured: Measured,
    wait_s: float,
    progress: Callable[[str], None],
    decide_now: Decide,
) -> ComparisonResult:
    end = time.monotonic() + wait_s
    while True:
        archive = archive.refreshed()
        verdict = decide_now(archive, measured)
        if verdict is not None:
            return verdict
        seen = positions.text(_seen(archive))
        goal = positions.text(measured.before)
        left = end - time.monotonic()
        if left <= 0:
            return ComparisonResult(
                Comparison.UNDECIDED,
                f"the archive has seen the table up to {seen}, the database was at {goal}"
                f" ({_described(measured.rows, measured.checksum)}); is the snapshotter running?"
                " --wait gives it longer",
            )
        progress(f"waiting for the archive to reach {goal}; it is at {seen}")
        time.sleep(min(POLL_S, left))


def decide(archive: Archive, measured: Measured) -> ComparisonResult | None:
    """The result for a table measured between two positions; None: undecided so far."""
    archive.unfold(unfolding.between(measured.before, measured.after))
    head = archive.boundary()
    known = _known(archive, measured)
    if known is not None:
        return _verdict(known, measured)
    for boundary in _near(archive, measured):
        if _same(boundary, measured):
            return ComparisonResult(Comparison.EQUAL, f"as the archive has it at {_text(boundary)}")
    if head.position >= measured.before:
        return ComparisonResult(
            Comparison.UNDECIDED,
            f"the table changed around {positions.text(measured.before)}, where no artifact ends;"
            " try again, or with --lock",
        )
    return None


def _known(archive: Archive, measured: Measured) -> Boundary | None:
    """The boundary whose state is the archive's from the one position to the other."""
    head = archive.boundary()
    if head.position <= measured.after and _seen(archive) >= measured.before:
        return head
    moment = {measured.after, measured.before}
    exactly = [b for b in _of_history(archive) if {b.position} == moment]
    return exactly[-1] if exactly else None


def _verdict(known: Boundary, measured: Measured) -> ComparisonResult:
    if _same(known, measured):
        return ComparisonResult(Comparison.EQUAL, f"as the archive has it at {_text(known)}")
    if measured.writers:
        pids = ", ".join(map(str, measured.writers))
        return ComparisonResult(
            Comparison.UNDECIDED,
            f"transactions were writing to the table (pid {pids}). Their rows may not have been"
            " visible yet; try again, or with --lock",
        )
    return ComparisonResult(Comparison.DIFFERENT, _difference(known, measured))


def decide_locked(archive: Archive, measured: Measured) -> ComparisonResult | None:
    """The result for a table that wasn't written to since it was measured."""
    head = archive.boundary()
    if _same(head, measured) or _seen(archive) >= measured.before:
        return _verdict(head, measured)
    return None


def _of_history(archive: Archive) -> list[Boundary]:
    found = archive.boundaries
    return [boundary for boundary in found if boundary.history == found[-1].history]


def _near(archive: Archive, measured: Measured) -> list[Boundary]:
    """The boundaries between the two positions, the last one before, and the first one after.

    The table was on its way from the one to the other when it was measured.
    """
    ordered = _of_history(archive)
    before = [boundary for boundary in ordered if boundary.position < measured.after]
    after = [boundary for boundary in ordered if boundary.position > measured.before]
    between = ordered[len(before) : len(ordered) - len(after)]
    return before[-1:] + between + after[:1]


def _seen(archive: Archive) -> Position:
    head = archive.boundary().position
    return max(head, archive.manifest.seen_position or head)


def _same(boundary: Boundary, measured: Measured) -> bool:
    last = boundary.last
    return (last.rows, last.state_checksum) == (measured.rows, measured.checksum)


def _difference(known: Boundary, measured: Measured) -> str:
    last = known.last
    return (
        f"the database has {_described(measured.rows, measured.checksum)} at"
        f" {positions.text(measured.before)}; the archive, at {known},"
        f" {_described(last.rows or 0, last.state_checksum or '')}"
    )


def _described(rows: int, checksum: str) -> str:
    return f"{rows} rows with the checksum {checksum}"


def _text(boundary: Boundary) -> str:
    return f"{boundary}, {_described(boundary.last.rows or 0, boundary.last.state_checksum or '')}"
