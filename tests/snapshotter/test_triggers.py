"""Each trigger alone, and what min_interval holds back."""

import pytest

from laredo_snapshotter.triggers import MOST_DIFFS, SinceSnapshot, Triggers

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
def test_fires_at_its_limit_and_not_before(
    name: str, triggers: Triggers, reached: dict[str, float], short: dict[str, float]
) -> None:
    assert triggers.due(SinceSnapshot(**{**QUIET, **reached})) == name  # type: ignore[arg-type]
    assert triggers.due(SinceSnapshot(**{**QUIET, **short})) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "triggers", "reached", "short"), CASES, ids=str)
def test_min_interval_holds_every_trigger_back(
    name: str, triggers: Triggers, reached: dict[str, float], short: dict[str, float]
) -> None:
    del name, short
    held = Triggers(**{field: getattr(triggers, field) for field in triggers.__slots__})  # type: ignore[attr-defined]
    object.__setattr__(held, "min_interval", 1000.0)
    assert held.due(SinceSnapshot(**{**QUIET, **reached})) is None  # type: ignore[arg-type]


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


def test_max_diffs_can_be_off() -> None:
    assert Triggers(max_diffs=0).due(SinceSnapshot(1e9, 1, 1, diffs=1 << 40)) is None
    assert Triggers().due(SinceSnapshot(1e9, 1, 1, diffs=2000)) == "max_diffs"


def test_an_omitted_trigger_is_off() -> None:
    busy = SinceSnapshot(1e9, 1, 1, diffs=1999, diff_bytes=1 << 60, churn_records=1 << 60)
    assert Triggers().due(busy) is None


def test_every_change_to_an_empty_table_is_over_its_fraction() -> None:
    quiet = SinceSnapshot(1.0, snapshot_bytes=0, rows=0)
    changed = SinceSnapshot(1.0, snapshot_bytes=0, rows=0, churn_records=1, diff_bytes=40)
    triggers = Triggers(max_churn_fraction=0.5, max_diff_fraction=0.5)
    assert triggers.due(quiet) is None
    assert triggers.due(changed) == "max_diff_fraction"
