"""Charts that both status pages share."""

import pytest

from laredo_service.http.page import HEIGHT, HOUR_S, STEP_S, WIDTH, LastHour, LineChart, chart_of

NOW = 1_000_000.0
TOPS = (10.0, 100.0)


def drawn(*samples: tuple[float, float | None]) -> LineChart:
    """The chart at NOW of samples, each some seconds before it."""
    values = LastHour()
    for age, value in samples:
        values.add(NOW - age, value)
    return chart_of(values, NOW, TOPS)


def test_a_step_shows_the_greatest_value_of_its_seconds() -> None:
    values = LastHour()
    for second, value in enumerate([1.0, 7.0, None, 2.0]):
        values.add(NOW + second, value)
    assert [step.value for step in values.since(NOW)] == [7.0]


def test_a_day_takes_no_more_memory_than_an_hour() -> None:
    values = LastHour()
    for step in range(24 * 360):
        values.add(NOW + step * STEP_S, float(step))
    end = NOW + 24 * HOUR_S
    kept = [step.value for step in values.since(end - STEP_S)]
    assert kept == [float(step) for step in range(24 * 360 - 361, 24 * 360)]
    # What is kept by number is older than an hour once nothing was added for a while.
    assert not list(values.since(end + 2 * HOUR_S))


def test_a_line_goes_from_left_to_right_and_from_the_lower_edge_up() -> None:
    chart = drawn((1800, 0.0), (1790, 5.0), (1780, 10.0))
    assert chart.top == 10.0 and chart.greatest == 10.0
    assert chart.lines == ("M360.0 100.0L362.0 50.0L364.0 0.0H366.0",)
    assert chart.areas == ("M360.0 100.0L362.0 50.0L364.0 0.0H366.0V100H360.0Z",)
    assert chart.gaps == ()


def test_where_nothing_was_known_there_is_a_gap_and_no_line() -> None:
    chart = drawn((1800, 1.0), (1790, None), (1780, None), (1770, 1.0))
    assert len(chart.lines) == 2
    assert [(gap.x, gap.width) for gap in chart.gaps] == [(362.0, 4.0)]


def test_where_the_program_did_not_run_there_is_a_gap() -> None:
    chart = drawn((1800, 1.0), (900, 1.0))
    assert len(chart.lines) == 2
    assert [(gap.x, gap.width) for gap in chart.gaps] == [(362.0, 178.0)]


def test_nothing_is_drawn_of_the_time_before_the_start() -> None:
    assert drawn() == LineChart(10.0, (), (), (), None)
    assert drawn((30, None)).greatest is None


def test_what_is_older_than_an_hour_ends_at_the_left_edge() -> None:
    values = LastHour()
    for age in (3600, 3590):
        values.add(NOW - age, 1.0)
    chart = chart_of(values, NOW + 5, TOPS)
    assert chart.lines[0].startswith("M0.0 90.0L1.0 90.0")
    assert "-" not in chart.lines[0]


@pytest.mark.parametrize(
    ("greatest", "top"), [(0.0, 10.0), (10.0, 10.0), (11.0, 100.0), (101.0, 200.0), (500.0, 800.0)]
)
def test_the_upper_edge_is_never_below_a_value(greatest: float, top: float) -> None:
    chart = drawn((20, greatest))
    assert chart.top == top
    heights = [float(each) for each in chart.lines[0].replace("H", " ").split()[1:2]]
    assert all(0 <= y <= HEIGHT for y in heights) and WIDTH > HEIGHT
