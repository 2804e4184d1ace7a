"""Each trigger alone, and what min_interval holds back."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from laredo_archive.manifest.model import Artifact, ArtifactKind, FormatEntry, Manifest
from laredo_model.position import Position
from laredo_snapshotter.triggers import MOST_DIFFS, SinceSnapshot, Triggers, fired, summary

QUIET = {"age_s": 100.0, "snapshot_bytes": 1000, "rows": 100}

CASES = [
    ("max_interval", Triggers(max_interval=200), {"age_s": 200.0}, {"age_s": 199.0}),
    ("max_diff_bytes", Triggers(max_diff_bytes=50), {"diff_bytes": 50}, {"diff_bytes": 49}),
    (
        "max_diff_fraction",
        Triggers(max_diff_fraction=0.5),
        {"diff_bytes": 500},
        {"diff_bytes": 499},
    ),
    (
        "max_churn_records",
        Triggers(max_churn_records=9),
        {"churn_records": 9},
        {"churn_records": 8},
    ),
    (
        "max_churn_fraction",
        Triggers(max_churn_fraction=0.25),
        {"churn_records": 25},
        {"churn_records": 24},
    ),
    ("max_diffs", Triggers(max_diffs=3), {"diffs": 3}, {"diffs": 2}),
]


@pytest.mark.parametrize(("name", "triggers", "reached", "short"), CASES, ids=str)
def test_fires_at_its_limit_not_before_and_not_within_min_interval(
    name: str, triggers: Triggers, reached: dict[str, float], short: dict[str, float]
) -> None:
    at_limit = SinceSnapshot(**{**QUIET, **reached})  # type: ignore[arg-type]
    assert triggers.due(at_limit) == name
    assert triggers.due(SinceSnapshot(**{**QUIET, **short})) is None  # type: ignore[arg-type]
    assert replace(triggers, min_interval=1000.0).due(at_limit) is None


@pytest.mark.parametrize(
    ("max_diffs", "diffs", "due"),
    [
        (2000, MOST_DIFFS - 1, None),
        (2000, MOST_DIFFS, "max_diffs"),
        (3 * MOST_DIFFS, 2 * MOST_DIFFS, None),
        (3 * MOST_DIFFS, 3 * MOST_DIFFS, "max_diffs"),
        (0, 100 * MOST_DIFFS, None),
    ],
)
def test_min_interval_holds_back_up_to_what_a_reader_bears(
    max_diffs: int, diffs: int, due: str | None
) -> None:
    held = Triggers(min_interval=1e9, max_diffs=max_diffs)
    assert held.due(SinceSnapshot(100.0, 1000, 100, diffs=diffs)) == due


def test_an_omitted_trigger_is_off_and_max_diffs_can_be() -> None:
    busy = SinceSnapshot(1e9, 1, 1, diffs=1999, diff_bytes=1 << 60, churn_records=1 << 60)
    assert Triggers().due(busy) is None
    assert Triggers().due(replace(busy, diffs=2000)) == "max_diffs"
    assert Triggers(max_diffs=0).due(replace(busy, diffs=1 << 40)) is None


def test_every_change_to_an_empty_table_is_over_its_fraction() -> None:
    quiet = SinceSnapshot(1.0, snapshot_bytes=0, rows=0)
    changed = SinceSnapshot(1.0, snapshot_bytes=0, rows=0, churn_records=1, diff_bytes=40)
    triggers = Triggers(max_churn_fraction=0.5, max_diff_fraction=0.5)
    assert triggers.due(quiet) is None
    assert triggers.due(changed) == "max_diff_fraction"


# Simulated triggers over an archive's manifest.


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
