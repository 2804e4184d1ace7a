"""The positions that several tables have in common are those at which each one is known."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from laredo_archive.manifest import parser, timeline
from laredo_archive.manifest.model import Artifact, ArtifactKind, Manifest, Parts
from laredo_archive.manifest.timeline import CommonBoundary
from laredo_model import position as histories
from laredo_model.position import Position
from tests.support import drawn

START = datetime(2026, 6, 3, 12, tzinfo=UTC)
NOW = histories.parse_history("7300000000000000001:1:16384")
LATER = histories.parse_history("7300000000000000001:2:16384")


def time_at(position: int) -> datetime:
    return START + timedelta(seconds=position)


def base(position: int, *, epoch: int = 1, history: histories.History = NOW) -> Artifact:
    return Artifact(
        ArtifactKind.SNAPSHOT,
        epoch,
        None,
        Position(position),
        START,
        {},
        row_count=0,
        history=history,
        to_time=time_at(position),
    )


def table(first: Artifact, *ends: int | tuple[int, int], after: int | None = None) -> Manifest:
    """Diffs up to ``ends``, of which a pair says too how far its from_position held."""
    artifacts = [first]
    for given in ends:
        unchanged, end = given if isinstance(given, tuple) else (None, given)
        artifacts.append(
            replace(
                first,
                kind=ArtifactKind.DIFF,
                from_position=artifacts[-1].to_position,
                to_position=Position(end),
                row_count=None,
                change_count=1,
                to_time=time_at(end),
                unchanged_until=None if unchanged is None else Position(unchanged),
            )
        )
    last = artifacts[-1]
    until = None if after is None else Position(after)
    return Manifest(
        "public.t",
        START,
        last.epoch,
        last.to_position,
        tuple(artifacts),
        history=last.history,
        seen_position=until,
        unchanged_until=until,
    )


def common_of(*manifests: Manifest) -> list[CommonBoundary]:
    found = timeline.common([timeline.spans_of(m, "there") for m in manifests])
    return [each for of_history in found.values() for each in of_history]


def test_a_quiet_table_is_known_at_the_others_boundaries() -> None:
    quiet = table(base(10), after=35)
    found = common_of(table(base(10), 20, 30, 40), quiet)
    assert [(each.position, [span.start for span in each.spans]) for each in found] == [
        (10, [10, 10]),
        (20, [20, 10]),
        (30, [30, 10]),
    ]
    assert [each.time for each in found] == [time_at(10), time_at(20), time_at(30)]


def test_seen_isnt_unchanged() -> None:
    """A change that was undone counts as seen; the table was another one in between."""
    quiet = replace(table(base(10), after=35), unchanged_until=None)
    assert [each.position for each in common_of(table(base(10), 20, 30), quiet)] == [10]
    later = replace(table(base(10), after=22), seen_position=Position(35))
    assert [each.position for each in common_of(table(base(10), 20, 30), later)] == [10, 20]
    stale = replace(table(base(10), after=35), seen_position=Position(22))
    assert [each.position for each in common_of(table(base(10), 20, 30), stale)] == [10, 20]


def test_of_two_epochs_at_one_position_the_later_one() -> None:
    first = table(base(10), 20)
    second = table(base(20, epoch=2), 30)
    both = replace(second, artifacts=first.artifacts + second.artifacts)
    found = common_of(both, table(base(20)))
    assert [[span.epoch for span in each.spans] for each in found] == [[2, 1]]


def test_positions_of_another_history_are_others() -> None:
    old, new = table(base(10), 20), table(base(15, epoch=2, history=LATER), 20)
    moved = replace(new, artifacts=old.artifacts + new.artifacts)
    assert [each.history for each in common_of(moved, old)] == [NOW, NOW]
    assert [(each.history, each.position) for each in common_of(moved, moved)] == [
        *((LATER, 15), (LATER, 20)),
        *((NOW, 10), (NOW, 20)),
    ]
    assert common_of(new, old) == []


@pytest.mark.parametrize(
    ("as_of", "exact", "expected"),
    [
        (None, False, 40),
        (Position(39), False, 20),
        (Position(39), True, None),
        (Position(22), True, 20),
        (Position(9), False, None),
        (time_at(39), False, 20),
        (time_at(20), True, 20),
        (time_at(21), True, None),
    ],
)
def test_as_of(as_of: Position | datetime | None, exact: bool, expected: int | None) -> None:
    found = common_of(table(base(10), 20, (25, 40)), table(base(10), 20, (22, 40)))
    chosen = timeline.last_at(found, as_of, exact=exact)
    assert (chosen and chosen.position) == expected


def test_it_is_written_and_read_again() -> None:
    manifest = table(base(10), (15, 20), after=35)
    again = parser.parse(manifest.to_bytes(), "there")
    assert again.unchanged_until == 35
    assert [artifact.unchanged_until for artifact in again.artifacts] == [None, 15]
    assert not again.source and not any(artifact.source for artifact in again.artifacts)


def test_a_catalogs_position_counts_after_a_tables_last_boundary_only() -> None:
    """Of one before, a diff says how far the table stayed as it was; a merged diff may hide a
    boundary that comes before the position."""
    merged = table(base(10), 40, 50)
    known = [(NOW, Position(each)) for each in (30, 45, 55)]
    spans = timeline.known_too(timeline.spans_of(merged, "there"), known)
    assert [(span.since, span.start) for span in spans[NOW]] == [
        (10, 10),
        (40, 40),
        (50, 50),
        (55, 50),
    ]
    rebased = replace(merged, artifacts=(base(10), base(40, epoch=2)))
    spans = timeline.known_too(timeline.spans_of(rebased, "there"), known)
    assert [(span.since, span.start) for span in spans[NOW]] == [
        *((10, 10), (30, 10), (40, 40), (45, 40), (55, 40)),
    ]


def test_a_boundary_that_a_merged_diff_hides_is_not_the_one_before_it() -> None:
    plain = table(base(10), 40, 50).artifacts
    parts = Parts(2, table(base(10), 20, 40).artifacts[1:])
    merged = [plain[0], replace(plain[1], parts=parts), plain[2]]

    def last(artifacts: Sequence[Artifact], position: int) -> int | None:
        found = timeline.last_boundary(artifacts, Position(position))
        return None if found is None else found.to_position

    assert [last(plain, each) for each in (9, 10, 35, 40, 60)] == [None, 10, 10, 40, 50]
    assert [last(merged, each) for each in (9, 10, 35, 40, 60)] == [None, 10, None, 40, 50]


@drawn.seeds(20, 100)
def test_as_one_says_it_position_by_position(seed: int) -> None:
    chance = Random(seed)
    manifests, known = [], []
    for _ in range(chance.randint(2, 4)):
        ends: list[tuple[int, int]] = []
        at = start = chance.randint(1, 8)
        held = {at: at}
        while at < 40:
            unchanged = chance.randint(at, at + 6)
            end = chance.randint(unchanged + 1, unchanged + 6)
            held |= dict.fromkeys(range(at, unchanged + 1), at)
            ends.append((unchanged, end))
            at = end
            held[at] = at
        manifests.append(table(base(start), *ends))
        known.append(held)
    expected = {
        tuple(held[position] for held in known)
        for position in range(60)
        if all(position in held for held in known)
    }
    found = common_of(*manifests)
    assert {tuple(span.start for span in each.spans) for each in found} == expected
    assert len(found) == len(expected)


def test_an_epoch_that_went_on_over_a_failover_has_its_boundaries_in_both_histories() -> None:
    """Knowledge of the time after the last boundary before the switch is of the new history."""

    def over(*ends: int | tuple[int, int]) -> Manifest:
        one = table(base(10), 20, (25, 40), *ends)
        artifacts = (*one.artifacts[:2], *(replace(a, history=LATER) for a in one.artifacts[2:]))
        return replace(one, artifacts=artifacts, history=LATER)

    born_later = table(base(22, history=LATER), 40)
    (both,) = (timeline.spans_of(over(), "there"),)
    assert [(each.start, each.until) for each in both[NOW]] == [(10, 10), (20, 20)]
    assert [(each.start, each.until) for each in both[LATER]] == [(10, 10), (20, 25), (40, 40)]
    assert [each.position for each in common_of(over(), born_later)] == [22, 40]
    assert [each.position for each in common_of(over(), over(50))] == [10, 20, 40, 10, 20]
