"""A served table that is archived too: every transaction goes into the store and, by the writer's
own buffer, into the diffs of a real archive. What the table held at every moment is noted apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from laredo_archive.manifest.model import Artifact
from laredo_archive.storage.destination import Destination
from laredo_archive.storage.local import LocalDestination
from laredo_archive.write.table_archive import TableArchive
from laredo_fanout.serving.options import ArchiveOptions
from laredo_fanout.serving.replay import Outcome
from laredo_fanout.store.environment import SourceIdentity
from laredo_model.column import Column
from laredo_model.line import Action
from laredo_model.position import Ancestor, History, Position
from laredo_snapshotter.diff.buffer import ChangeBuffer
from tests.support.server.serving_world import COLUMNS, HISTORY, USERS, Writer, line

State = dict[bytes, bytes]
MORNING = datetime(2026, 6, 3, 8, tzinfo=UTC)
Write = tuple[int, str | None]
"""A row's id and its new name; None deletes it."""
TRUNCATE: Write = (0, None)


def options(directory: Path, formats: Sequence[str] = ("jsonl",)) -> ArchiveOptions:
    return ArchiveOptions("users/", tuple(formats), path=directory)


@dataclass
class Moment:
    """One transaction: where it ended, and the table after each of its changes."""

    position: int
    states: list[State]

    @property
    def state(self) -> State:
        return self.states[-1]


@dataclass
class Archived:
    """The table public.users, served by `writer`'s store and archived at `place`."""

    writer: Writer
    place: Destination
    formats: Sequence[str] = ("jsonl",)
    history: History = HISTORY
    columns: tuple[Column, ...] = COLUMNS
    moments: list[Moment] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def begin(self, rows: State) -> None:
        """The table as it was copied, and the archive's first base."""
        self.writer.publish(list(rows.values()))
        self.moments.append(Moment(self.writer.position, [dict(rows)]))
        self.buffer = ChangeBuffer()
        self.archive = TableArchive.open([self.place], USERS, key_prefix="users/")
        self.unwritten = 0
        self.rebase(continues=False)

    @property
    def state(self) -> State:
        return self.moments[-1].state

    @property
    def position(self) -> int:
        return self.writer.position

    def state_at(self, position: int) -> State:
        return [moment for moment in self.moments if moment.position <= position][-1].state

    def commit(self, *writes: Write) -> int:
        """One transaction."""
        state, changes, states = dict(self.state), [], []
        for number, name in writes:
            key = b"%d" % number
            old = state.get(key, b"")
            if (number, name) == TRUNCATE:
                state = {}
                changes.append((Action.TRUNCATE, b"", b"", b""))
            elif name is None:
                del state[key]
                changes.append((Action.DELETE, key, b"", old))
            else:
                state[key] = new = line(number, name)
                changes.append((Action.UPDATE if old else Action.INSERT, key, new, old))
            states.append(dict(state))
        self.writer.commit(*[(action, new or key) for action, key, new, _ in changes])
        self.moments.append(Moment(self.position, states))
        self.buffer.take(
            bytes(action for action, *_ in changes),
            [key for _, key, _, _ in changes],
            [new for _, _, new, _ in changes],
            [old for *_, old in changes],
            position=self.position,
            time_us=self.writer.time_us,
            ends=True,
        )
        return self.position

    def cut(self, *, forced: bool = False, later: timedelta = timedelta(0)) -> Artifact | None:
        """A diff up to here, unless nothing has changed; ``later`` than those before."""
        frozen = self.buffer.freeze(self.position, forced=forced)
        head = self.archive.head
        assert head is not None and head.rows is not None and head.checksum is not None
        if frozen.empty and not forced:
            return None
        outcome = frozen.measure(head.rows, head.checksum)
        if outcome.empty and not (forced and self.position > head.position):
            self.unwritten += outcome.cancelled
            return None
        cancelled, self.unwritten = outcome.cancelled + self.unwritten, 0
        return self.archive.commit_diff(
            frozen.changes(),
            from_position=head.position,
            to_position=Position(self.position),
            to_time=MORNING + later,
            rows=outcome.rows,
            checksum=outcome.checksum,
            formats=self.formats,
            truncate=outcome.truncate,
            cancelled=cancelled,
            history=self.history,
        )

    def fail_over(self) -> None:
        """A standby that has everything is promoted."""
        before = Ancestor(self.history, Position(self.position))
        self.history = self.history._replace(timeline=self.history.timeline + 1)
        with self.writer.store.transaction() as txn:
            txn.set_source(SourceIdentity(self.history, "laredo", "laredo", "token", (before,)))

    def rebase(self, *, continues: bool = True) -> Artifact:
        """A new epoch's base at this very position."""
        if continues:
            self.cut(forced=True)
        with self.archive.snapshot(
            position=Position(self.position),
            history=self.history,
            columns=self.columns,
            key_fields=["id"],
            formats=self.formats,
        ) as upload:
            ordered = sorted(self.state.items())
            upload.write([key for key, _ in ordered], [row for _, row in ordered])
            base = upload.finish(MORNING)
        if not continues:
            self.buffer.freeze(self.position)
        return self.archive.commit_base(base, continues=continues)

    def see(self) -> None:
        """Nothing differs from the head up to here."""
        assert self.buffer.empty
        self.archive.see(Position(self.position))

    def prune(self, keep: int = 1) -> None:
        """The journal forgets all but its newest transactions."""
        self.writer.prune(keep)

    def copied(self, numbers: Sequence[int]) -> None:
        self.begin({b"%d" % number: line(number, "first") for number in numbers})


def local(directory: Path) -> LocalDestination:
    return LocalDestination(directory)
