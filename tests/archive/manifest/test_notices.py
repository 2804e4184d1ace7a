"""Outstanding notices of a sink, by its mark and the manifest alone."""

from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from laredo_archive.manifest import updates
from laredo_archive.manifest.model import Artifact, ArtifactKind, EpochPosition, Manifest
from laredo_archive.manifest.updates import Notices
from laredo_model.position import Position
from tests.support.archive.archiving import HISTORY, OTHER_HISTORY

NOW = datetime(2026, 6, 3, tzinfo=UTC)
EMPTY = Manifest("public.t", NOW)


def base(epoch: int, position: int) -> Artifact:
    return Artifact(
        ArtifactKind.SNAPSHOT, epoch, None, Position(position), NOW, {}, history=HISTORY
    )


def diff(epoch: int, start: int, end: int) -> Artifact:
    return Artifact(
        ArtifactKind.DIFF, epoch, Position(start), Position(end), NOW, {}, history=HISTORY
    )


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Epochs of a base and some diffs; a later one may begin where the one before had been."""
    artifacts: list[Artifact] = []
    position = 0
    for epoch in range(1, draw(st.integers(0, 4)) + 1):
        position = max(0, position + draw(st.integers(-2, 2)))
        artifacts.append(base(epoch, position))
        for _ in range(draw(st.integers(0, 3))):
            artifacts.append(diff(epoch, position, position + 1))
            position += 1
    return replace(EMPTY, artifacts=tuple(artifacts))


MARKS = st.none() | st.builds(EpochPosition, st.integers(0, 5), st.integers(0, 12).map(Position))


@given(manifests(), MARKS)
def test_outstanding_is_what_comes_after_the_mark(
    manifest: Manifest, mark: EpochPosition | None
) -> None:
    notices = Notices(["s"], [replace(manifest, notified={"s": mark})])
    expected = [
        artifact
        for artifact in manifest.artifacts
        if mark is None or (artifact.epoch, artifact.to_position) > mark
    ]
    assert notices.outstanding("s", manifest) == expected
    assert notices.count_outstanding("s", manifest) == len(expected)
    assert notices.next_for("s", manifest) == (expected[0] if expected else None)


@given(manifests())
def test_one_after_the_other_all_are_told(manifest: Manifest) -> None:
    notices, told = Notices(["s"], [manifest]), []
    while (artifact := notices.next_for("s", manifest)) is not None:
        told.append(artifact)
        notices.mark_notified("s", artifact)
    assert told == list(manifest.artifacts)


def test_what_is_told_late_takes_no_mark_back() -> None:
    notices = Notices(["s"], [])
    notices.mark_notified("s", diff(2, 10, 20))
    notices.mark_notified("s", diff(1, 30, 40))
    assert notices.notified_of == {"s": EpochPosition(2, Position(20))}


def followed(before: Manifest, after: Manifest, mark: EpochPosition | None) -> int:
    notices = Notices(["s"], [replace(before, notified={"s": mark})])
    notices.follow(before, after)
    return notices.missed["s"]


LONG = replace(EMPTY, artifacts=(base(1, 10), diff(1, 10, 20), diff(1, 20, 30), diff(1, 30, 40)))


def test_a_diff_that_a_re_base_took_along_is_not_missed() -> None:
    after = updates.with_base(LONG, base(2, 20), keep_epochs=1)
    assert [a.to_position for a in after.artifacts] == [20, 30, 40]
    assert followed(LONG, after, None) == 2
    assert followed(LONG, after, EpochPosition(1, Position(10))) == 1
    assert followed(LONG, after, EpochPosition(1, Position(20))) == 0


def test_diffs_of_another_history_are_missed() -> None:
    other = replace(base(2, 20), history=OTHER_HISTORY)
    after = updates.with_base(LONG, other, keep_epochs=1)
    with capture_logs() as logs:
        assert followed(LONG, after, EpochPosition(1, Position(10))) == 3
    assert [(line["sink"], line["artifacts"]) for line in logs] == [("s", 3)]


def test_as_long_as_all_epochs_stay_nothing_is_missed() -> None:
    after = updates.with_base(LONG, base(2, 20), keep_epochs=None)
    assert followed(LONG, after, None) == 0
    assert followed(EMPTY, LONG, None) == 0
