"""Figures: ratio, verdict, and what is shown and saved of them. No timing here."""

from io import StringIO
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner
from rich.console import Console

from benchmarks import figures
from benchmarks.__main__ import SUBJECTS, main
from benchmarks.figures import Figure
from benchmarks.scenario import percentile


@pytest.mark.parametrize(
    ("figure", "ratio", "reached"),
    [
        (Figure("s", "w", 80, "rows/s", 100, target=0.8, target_is_ratio=True), 0.8, True),
        (Figure("s", "w", 79, "rows/s", 100, target=0.8, target_is_ratio=True), 0.79, False),
        (Figure("s", "w", 500, "rows/s", 100, target=500), 5.0, True),
        (Figure("s", "w", 4.1, "ms", target=4, less_is_better=True), None, False),
        (Figure("s", "w", 3.9, "ms", 1, target=4, less_is_better=True), 3.9, True),
        (Figure("s", "w", 10, "rows/s", 20), 0.5, None),
        (Figure("s", "w", 10, "rows/s", target=0.8, target_is_ratio=True), None, None),
    ],
)
def test_ratio_and_verdict(figure: Figure, ratio: float | None, reached: bool | None) -> None:
    assert figure.ratio == ratio
    assert figure.reached is reached


def test_saved_with_limit_ratio_and_machine(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.json"
    figures.save([Figure("copy", "w", 80, "rows/s", 100, "psql", 0.8, True)], path, {"rows": 7})
    saved = orjson.loads(path.read_bytes())
    assert saved["settings"] == {"rows": 7}
    assert saved["machine"]["cores"] >= 1
    assert saved["figures"][0]["limit_of"] == "psql"
    assert (saved["figures"][0]["ratio"], saved["figures"][0]["reached"]) == (0.8, True)


def test_shown_with_value_limit_ratio_target_and_verdict() -> None:
    text = StringIO()
    found = [Figure("copy", "rows", 79_000, "rows/s", 100_000, "psql", 0.8, target_is_ratio=True)]
    figures.show(found, Console(file=text, width=160))
    for part in ("79,000 rows/s", "100,000", "0.79", "≥ 0.8 of limit", "missed", "psql"):
        assert part in text.getvalue()


def test_percentiles() -> None:
    values = [float(value) for value in range(1, 101)]
    assert percentile(values, 0.5) == 51
    assert percentile(values, 0.95) == 96
    assert percentile([3.0], 0.95) == 3


def test_an_unknown_subject_is_refused_with_those_that_exist() -> None:
    refused = CliRunner().invoke(main, ["nonsense"])
    assert refused.exit_code == 2
    assert all(subject in refused.output for subject in SUBJECTS)
