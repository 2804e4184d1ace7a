"""A writer that does what comes into its mind, in a process of its own, until it is killed.

It writes the random table's archive from wherever it stands: diffs, bases with
diffs beside them, positions seen, garbage collected. Exit codes: 0 when the
archive has come to ``last``, FENCED, GAVE_UP.
"""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TypeVar

import structlog

from laredo_archive import failpoint
from laredo_archive.errors import (
    ArtifactMissing,
    CommitUnavailable,
    DestinationUnavailable,
    Fenced,
    NotCollectable,
)
from laredo_archive.maintain.collect import Policy, collect
from laredo_archive.storage.s3 import upload
from laredo_archive.write.base_upload import Base
from laredo_archive.write.table_archive import TableArchive
from laredo_model.position import Position
from tests.archive.chaos.random_table import STEP, RandomTable
from tests.support.archive.archiving import HISTORY, PREFIX, TABLE
from tests.support.archive.inspection import destination_at, read_descriptions
from tests.support.archive.truth import COLUMNS, checksum_of
from tests.support.processes import PATIENCE_S

FENCED, GAVE_UP = 3, 4
CUT_OFF = GRACE = timedelta(seconds=1.5)
"""Longer than a late request takes; a store's times are whole seconds."""

T = TypeVar("T")

# Processes are forked from one that has imported this.
read_descriptions()


@dataclass(frozen=True)
class Orders:
    """``life`` tells one process of a seed from the next; ``kill_at``: which failpoint it dies at.

    ``patience_s``: how long it goes on trying. ``part_bytes``: how large a multipart
    upload's parts are. ``directory`` is where what sinks are told is written.
    """

    seed: int
    life: str
    places: tuple[str, ...]
    last: int
    directory: Path
    formats: tuple[str, ...] = ("jsonl",)
    sinks: tuple[str, ...] = ("arn:sink",)
    keep_epochs: int | None = None
    part_bytes: int = upload.PART_BYTES
    kill_at: str = ""
    patience_s: float = PATIENCE_S


class RandomWriter:
    """One life."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._chance = Random(f"{orders.seed} {orders.life}")
        self._table = RandomTable(orders.seed)
        self._places = [destination_at(place) for place in orders.places]
        self._deadline = time.monotonic() + orders.patience_s

    def run(self) -> None:
        """Write until the archive has come to the last position."""
        with self._opened() as archive:
            while archive.head is None or archive.head.position < self._orders.last:
                self._one_turn(archive)
            self._announce(archive, patience=1.0)
            self._tried(archive.record_notices)

    def _opened(self) -> TableArchive:
        orders = self._orders
        return self._tried(
            lambda: TableArchive.open(
                self._places,
                TABLE,
                key_prefix=PREFIX,
                keep_epochs=orders.keep_epochs,
                sinks=orders.sinks,
            )
        )

    def _tried(self, call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except (CommitUnavailable, DestinationUnavailable):
                if time.monotonic() > self._deadline:
                    raise
                time.sleep(0.02)  # a destination that is away is asked again

    def _one_turn(self, archive: TableArchive) -> None:
        if archive.head is None:
            self._base(archive, continues=False)
            return
        draw = self._chance.random()
        if draw < 0.65:
            self._diff(archive)
        elif draw < 0.8:
            self._base(archive, continues=True)
        elif draw < 0.9:
            seen = Position(archive.head.position + self._chance.randrange(STEP))
            self._tried(lambda: archive.see(seen))
        else:
            self._collect()
        self._announce(archive, patience=0.8)

    def _diff(self, archive: TableArchive) -> None:
        assert archive.head is not None
        start = archive.head.position
        end = start - start % STEP + STEP * self._chance.randint(1, 3)
        changes, truncated = self._table.changes(start, end)
        checksum = checksum_of(self._table.at(end))
        self._tried(
            lambda: archive.commit_diff(
                iter(changes),
                from_position=start,
                to_position=Position(end),
                to_time=None,
                rows=checksum.rows,
                checksum=checksum.hex(),
                formats=self._orders.formats,
                truncate=truncated,
            )
        )

    def _base(self, archive: TableArchive, *, continues: bool) -> None:
        while not self._based(archive, continues=continues):
            assert time.monotonic() < self._deadline, "a base's object is always gone"

    def _based(self, archive: TableArchive, *, continues: bool) -> bool:
        position = archive.head.position if archive.head else Position(STEP)
        base = self._tried(lambda: self._uploaded(archive, position))
        for _ in range(self._chance.randint(0, 2) if continues else 0):
            self._diff(archive)
        try:
            self._tried(lambda: archive.commit_base(base, continues=continues))
        except ArtifactMissing:
            return False
        return True

    def _uploaded(self, archive: TableArchive, position: Position) -> Base:
        with archive.snapshot(
            position=position,
            history=HISTORY,
            columns=COLUMNS,
            key_fields=["id"],
            formats=self._orders.formats,
        ) as writing:
            for key, line in sorted(self._table.at(position).items()):
                writing.write([key], [line])
            return writing.finish(datetime.now(UTC))

    def _collect(self) -> None:
        place = self._chance.choice(self._places)
        self._tried(lambda: collect(place, TABLE, key_prefix=PREFIX, policy=Policy(CUT_OFF, GRACE)))

    def _announce(self, archive: TableArchive, patience: float) -> None:
        """Tell each sink what it wasn't told; with little patience, not everything."""
        manifest = archive.manifest
        assert manifest is not None
        for number, sink in enumerate(self._orders.sinks):
            for artifact in archive.notices.outstanding(sink, manifest):
                if self._chance.random() > patience:
                    break
                with (self._orders.directory / f"sink-{number}").open("a") as told:
                    told.write(f"{artifact.epoch} {artifact.to_position} {artifact.kind.value}\n")
                archive.notices.mark_notified(sink, artifact)


def _set_up(orders: Orders) -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(10),
        logger_factory=structlog.WriteLoggerFactory(
            (orders.directory / f"log-{orders.life}").open("w", buffering=1)
        ),
        processors=[structlog.processors.TimeStamper("iso"), structlog.processors.LogfmtRenderer()],
    )
    failpoint._reached = failpoint._action(orders.kill_at)
    upload.PART_BYTES = orders.part_bytes


def write(orders: Orders) -> None:
    """A writer's process: ends by itself, or at its failpoint."""
    _set_up(orders)
    try:
        RandomWriter(orders).run()
    except Fenced:
        sys.exit(FENCED)
    except (CommitUnavailable, DestinationUnavailable) as failure:
        print(failure)
        sys.exit(GAVE_UP)


def sweep(orders: Orders) -> None:
    """A collector's process, until it is killed.

    It takes for an orphan what was uploaded a moment ago: a commit must bear that.
    """
    _set_up(orders)
    chance = Random(f"{orders.seed} {orders.life}")
    places = [destination_at(place) for place in orders.places]
    while True:
        time.sleep(0.1 * chance.random())  # between two runs
        cut_off = chance.choice([CUT_OFF, -CUT_OFF])
        with suppress(DestinationUnavailable, NotCollectable):
            collect(chance.choice(places), TABLE, key_prefix=PREFIX, policy=Policy(cut_off, GRACE))
