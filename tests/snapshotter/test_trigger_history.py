"""Simulated triggers over an archive's manifest."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from laredo_archive.manifest.model import Artifact, ArtifactKind, FormatEntry, Manifest
from laredo_model.position import Position
from laredo_snapshotter.diff.trigger_history import fired, summary
from laredo_snapshotter.triggers import Triggers

START = datetime(2026, 6, 1, tzinfo=UTC)
GB, MIB = 1_000_000_000, 1 << 20


def artifact(kind: ArtifactKind, minute: float, size: int, **more: object) -> Artifact:
    return replace(
        Artifact(
            kind,
            1,
            None,
            Position(16 + int(minute * 100)),
            START + timedelta(minutes=minute),
            {"jsonl": FormatEntry("", size, "")},
            row_count=1_000_000 if kind is ArtifactKind.SNAPSHOT else None,
            change_count=1000 if kind is ArtifactKind.DIFF else None,
            rows=1_000_000,
            continues=True,
        ),
        **more,  # type: ignore[arg-type]
    )


def archive(*artifacts: Artifact) -> Manifest:
    return Manifest("public.users", START, artifacts=artifacts)


def diffs(count: int, size: int, **more: object) -> list[Artifact]:
    return [artifact(ArtifactKind.DIFF, minute, size, **more) for minute in range(1, count + 1)]


BASE = artifact(ArtifactKind.SNAPSHOT, 0, 10 * GB)
DAY = archive(BASE, *diffs(1440, 8 * MIB))


@pytest.mark.parametrize(
    ("triggers", "expected"),
    [
        (Triggers(max_diff_bytes=32 * MIB), {"max_diff_bytes": 360}),
        (Triggers(max_diff_bytes=32 * MIB, min_interval=3600), {"max_diff_bytes": 24}),
        (Triggers(max_diff_fraction=0.5), {"max_diff_fraction": 2}),
        (Triggers(max_churn_records=100_000), {"max_churn_records": 14}),
        (Triggers(max_churn_fraction=0.5), {"max_churn_fraction": 2}),
        (Triggers(max_diffs=500), {"max_diffs": 2}),
        (Triggers(), {}),
        (Triggers(max_interval=6 * 3600 - 1), {"max_interval": 4}),
    ],
    ids=str,
)
def test_a_day_of_a_table_of_10_gb(triggers: Triggers, expected: dict[str, int]) -> None:
    found = fired(triggers, DAY)
    assert found is not None
    assert dict(found.by_trigger) == expected
    assert (found.diffs, found.diff_bytes, found.seconds) == (1440, 1440 * 8 * MIB, 86400.0)


def test_a_quiet_tables_intervals_count() -> None:
    quiet = archive(BASE, artifact(ArtifactKind.DIFF, 600, 100))
    found = fired(Triggers(max_interval=7200), quiet)
    assert found is not None
    assert dict(found.by_trigger) == {"max_interval": 5}


def test_bases_of_other_settings_count_for_nothing_and_forced_ones_begin_anew() -> None:
    parts = diffs(9, 1000)
    between = artifact(ArtifactKind.SNAPSHOT, 4.5, 10 * GB)
    asked = archive(BASE, *parts[:4], between, *parts[4:])
    forced = archive(BASE, *parts[:4], replace(between, continues=False), *parts[4:])
    triggers = Triggers(max_diffs=6)
    for manifest, times in ((asked, 1), (forced, 0)):
        found = fired(triggers, manifest)
        assert found is not None
        assert found.bases == times


def test_the_fraction_is_of_the_rows_at_that_time() -> None:
    shrinking = archive(BASE, *diffs(10, 1000, rows=1000))
    found = fired(Triggers(max_churn_fraction=2.0), shrinking)
    assert found is not None
    assert found.bases == 5


def test_what_check_says() -> None:
    assert summary(Triggers(), None) == "how often they would fire shows once the archive has diffs"
    assert summary(Triggers(), archive(BASE)) == summary(Triggers(), None)
    assert "none would have fired" in summary(Triggers(), DAY)
    found = summary(Triggers(max_diff_bytes=32 * MIB), DAY)
    assert "over the archive's 24.0 h (1440 diffs, 12.1 GB) they would have fired 360 times" in (
        found
    )
    assert "every 4.0 min (max_diff_bytes 360): 3.6 TB of bases, 10.0 GB each" in found
